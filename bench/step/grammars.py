"""Grammars of a profile: compiled on the spot, so that only their masks are in the steps."""

from __future__ import annotations

from collections.abc import Sequence

from constrained.auto import AutoGrammarBackend
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError
from scheduler.request import RequestGroup


class InPlaceGrammars:
    """A grammar manager for which nobody ever waits."""

    def __init__(self, environment: GrammarEnvironment) -> None:
        self._backend = AutoGrammarBackend(environment)

    def process_req_with_grammar(self, req: RequestGroup) -> bool:
        """Set the request's grammar, or its error; always false: nothing waits."""
        if req.grammar_spec is None:
            raise ValueError(f"request {req.request_id} asks for no grammar")
        try:
            req.grammar = self._backend.compile(req.grammar_spec).grammar.copy()
        except GrammarError as error:
            req.grammar_error = str(error)
        return False

    def get_ready_grammar_requests(self) -> list[RequestGroup]:
        return []

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Nothing waits."""

    def clear(self) -> None:
        """Nothing waits."""

    def fileno(self) -> int:
        """-1: there is never anything to wake up for."""
        return -1
