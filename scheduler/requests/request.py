"""Request state: the tokens a choice knows, and how many of them have valid KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from scheduler.messages import Finish, GenerateRequest, TokenLogprob
from scheduler.requests.stops import StopState
from scheduler.requests.thinking import ThinkingState

if TYPE_CHECKING:
    from constrained.engines.base import BaseGrammarObject
    from constrained.errors import GrammarError
    from constrained.spec import GrammarSpec, ReasoningSpec
    from sampling.params import SamplingParams
    from scheduler.memory.prefix_cache import CacheNode


class Status(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False, slots=True)
class RequestGroup:
    """One :class:`GenerateRequest`: its choices, and what they share. What the grammar layer calls a request."""

    client: bytes
    """Address of the HTTP process that sent it."""
    message: GenerateRequest
    seed: int
    stop_ids: frozenset[int]
    """Ids that end an answer: the request's own, and the model's end-of-text ids unless it ignores them. A constrained
    answer has no other end, so there they are never ignored."""
    max_total_tokens: int
    """Most tokens a choice may have, prompt included: the model's context or the KV pool, whichever is smaller."""
    choices: list[Request] = field(default_factory=list)
    num_unfinished: int = 0
    cached_tokens: int | None = None
    """Prompt tokens the first choice found in the prefix cache; ``None`` before it ran."""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of the prompt's second token and on, as far as they are known."""
    prompt_logprobs_sent: bool = False
    grammar: BaseGrammarObject | None = None
    """In its start state: choices have copies."""
    grammar_error: GrammarError | None = None

    @property
    def request_id(self) -> str:
        """Unique in this process; the id its client knows is ``message.request_id``."""
        return f"{self.client.hex()}/{self.message.request_id}"

    @property
    def sampling(self) -> SamplingParams:
        return self.message.sampling

    @property
    def grammar_spec(self) -> GrammarSpec | None:
        return self.message.grammar

    @property
    def reasoning(self) -> ReasoningSpec | None:
        return self.message.reasoning

    @property
    def is_running(self) -> bool:
        return self.num_unfinished > 0 and self.cached_tokens is not None


@dataclass(eq=False, slots=True)
class Request:
    """One choice. Its known tokens are prompt, accepted output and, while a step verifies them, drafts behind it."""

    group: RequestGroup
    choice_index: int
    arrival: int
    """Unique, in order of arrival over all requests."""
    token_ids: list[int]
    """Prompt and accepted output."""
    prompt_length: int
    stop_state: StopState
    thinking: ThinkingState
    may_draft: bool = False
    """Whether a drafter may propose tokens for it."""
    grammar: BaseGrammarObject | None = None
    status: Status = Status.WAITING

    num_computed: int = 0
    """Leading tokens with valid KV once every launched step has run; falls back to the accepted ones after drafts."""
    num_in_flight: int = 0
    """Tokens that launched steps draw and the CPU has not seen."""
    draft_token_ids: tuple[int, ...] = ()
    """Guesses behind ``token_ids`` that a launched step verifies."""
    pending_row: int = -1
    """Row of the newest launched step that draws the token in flight."""

    block_table: list[int] = field(default_factory=list)
    cache_node: CacheNode | None = None
    """The prefix cache's node for the leading pages of ``block_table`` that are in it."""
    match_node: CacheNode | None = None
    """While waiting: the longest cached prefix at the last look."""
    residency: int = 0
    """How often its pages went back."""
    num_passed_over: int = 0
    """Later arrivals that were admitted before it."""

    unsent_token_ids: list[int] = field(default_factory=list)
    unsent_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None
    accepted_prediction_tokens: int = 0
    """Tokens of the client's prediction that were proposed and became output."""
    rejected_prediction_tokens: int = 0

    @property
    def sampling(self) -> SamplingParams:
        return self.group.message.sampling

    @property
    def priority(self) -> int:
        return self.group.message.priority

    @property
    def key(self) -> int:
        """What the sampling state knows it by."""
        return self.arrival

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.prompt_length

    @property
    def num_uncomputed(self) -> int:
        """Tokens, known or in flight, that no launched step computes yet."""
        return len(self.token_ids) + self.num_in_flight - self.num_computed

    @property
    def runs_ahead(self) -> bool:
        """Whether its next token may be computed before the CPU has seen the last one.

        A grammar's next mask and a drafter's guess both need to see it.
        """
        return self.grammar is None and not self.may_draft

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be accepted."""
        limit = min(self.prompt_length + self.sampling.max_tokens, self.group.max_total_tokens)
        return limit - len(self.token_ids)

    @property
    def num_drawable(self) -> int:
        """Tokens that may still be drawn: those in flight are drawn already."""
        return self.num_remaining - self.num_in_flight

    @property
    def scores_prompt(self) -> bool:
        """Whether this choice computes log-probabilities of prompt tokens that are not known yet."""
        return (
            self.choice_index == 0
            and self.sampling.prompt_logprobs is not None
            and len(self.group.prompt_logprobs) < self.prompt_length - 1
        )


def make_group(
    client: bytes, message: GenerateRequest, *, seed: int, eos_token_ids: tuple[int, ...], max_total_tokens: int
) -> RequestGroup:
    """The state of a request that passed its checks, without its choices."""
    sampling = message.sampling
    stop_ids = set(sampling.stop_token_ids)
    if not sampling.ignore_eos or message.grammar is not None:
        stop_ids.update(eos_token_ids)
    return RequestGroup(client, message, seed, frozenset(stop_ids), max_total_tokens)


def make_choices(group: RequestGroup, first_arrival: int, token_bytes: Sequence[bytes] = ()) -> list[Request]:
    """``n`` choices, each with its own copy of the grammar's state.

    Stop strings do not end a constrained answer, they would cut the form in two; but where only parts of the answer are
    constrained, they end it between them.

    Parameters
    ----------
    token_bytes
        What each token adds to the text, to know where thinking ends.
    """
    is_constrained = group.message.grammar is not None and not group.message.stops_between_forms
    stops = () if is_constrained else group.sampling.stop
    prompt = group.message.prompt_token_ids
    for index in range(group.sampling.n):
        grammar = None if group.grammar is None else group.grammar.copy()
        if grammar is not None and group.reasoning is not None:
            grammar.maybe_init_reasoning(group.reasoning.is_thinking)
        group.choices.append(
            Request(
                group=group,
                choice_index=index,
                arrival=first_arrival + index,
                token_ids=list(prompt),
                prompt_length=len(prompt),
                stop_state=StopState(stops),
                thinking=ThinkingState(group.reasoning, token_bytes),
                grammar=grammar,
            )
        )
    group.num_unfinished = len(group.choices)
    return group.choices
