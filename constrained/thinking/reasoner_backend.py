"""Any backend, with the thinking of each request taken into account."""

from __future__ import annotations

from concurrent.futures import Future

from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, InvalidGrammarObject
from constrained.spec import GrammarSpec, ReasoningSpec
from constrained.thinking.boundary import ThinkEndMarker
from constrained.thinking.parts import ThinkingPartsObject, check_markers
from constrained.thinking.reasoner import ReasonerGrammarObject


class ReasonerGrammarBackend(BaseGrammarBackend):
    """Any backend; its objects are wrapped for the requests that may think. Invalid ones pass through unwrapped."""

    name = "reasoner"

    def __init__(self, inner: BaseGrammarBackend) -> None:
        super().__init__(inner.environment)
        self.inner = inner
        self.service = inner.service

    def get_cached_or_future_value(
        self, key: GrammarSpec, require_reasoning: ReasoningSpec | None = None
    ) -> tuple[BaseGrammarObject | Future[BaseGrammarObject], bool]:
        if require_reasoning is not None:
            # Raises before anything is queued: a callback could tell nobody.
            ThinkEndMarker(self.environment, require_reasoning.think_end_ids)
            if _bounds_parts(require_reasoning):
                check_markers(self.environment, require_reasoning)
        value, is_hit = self.inner.get_cached_or_future_value(key, None)
        if require_reasoning is None:
            return value, is_hit
        if isinstance(value, BaseGrammarObject):
            return self.wrap(value, require_reasoning), is_hit
        return self._wrap_future(value, require_reasoning), is_hit

    def wrap(self, grammar: BaseGrammarObject, reasoning: ReasoningSpec) -> BaseGrammarObject:
        if isinstance(grammar, InvalidGrammarObject):
            return grammar
        kind = ThinkingPartsObject if _bounds_parts(reasoning) else ReasonerGrammarObject
        return kind(grammar, reasoning)

    def _wrap_future(self, inner: Future[BaseGrammarObject], reasoning: ReasoningSpec) -> Future[BaseGrammarObject]:
        outer: Future[BaseGrammarObject] = Future()

        def resolve(done: Future[BaseGrammarObject]) -> None:
            if done.cancelled() or not outer.set_running_or_notify_cancel():
                return
            try:
                outer.set_result(self.wrap(done.result(), reasoning))
            except BaseException as error:
                outer.set_exception(error)  # what a callback raises reaches nobody

        def leave(done: Future[BaseGrammarObject]) -> None:
            if done.cancelled():
                inner.cancel()

        inner.add_done_callback(resolve)
        outer.add_done_callback(leave)
        return outer

    def _init_value_dispatch(self, key: GrammarSpec) -> BaseGrammarObject:
        return self.inner._init_value_dispatch(key)

    def dispatch_json(self, value: str) -> BaseGrammarObject:
        return self.inner.dispatch_json(value)

    def dispatch_regex(self, value: str) -> BaseGrammarObject:
        return self.inner.dispatch_regex(value)

    def dispatch_ebnf(self, value: str) -> BaseGrammarObject:
        return self.inner.dispatch_ebnf(value)

    def dispatch_structural_tag(self, value: str) -> BaseGrammarObject:
        return self.inner.dispatch_structural_tag(value)

    def serialize(self, compiled: BaseGrammarObject) -> bytes:
        return self.inner.serialize(compiled)

    def deserialize(self, payload: bytes) -> BaseGrammarObject:
        return self.inner.deserialize(payload)


def _bounds_parts(reasoning: ReasoningSpec) -> bool:
    return reasoning.may_think_again and reasoning.budget is not None
