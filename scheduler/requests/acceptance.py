"""What a step's results do to a request: tokens accepted one by one, until one of them ends the answer.

Pure state transitions; the loop tells the clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from constrained.errors import reraise_exit
from scheduler.messages import Finish, FinishReason, TokenLogprob, Usage
from scheduler.planning.plan import PlanRow, RowResult
from scheduler.requests.request import Request, RequestGroup


@dataclass(frozen=True, slots=True)
class RowError(Exception):
    """One request cannot go on; the step's other rows are unharmed."""

    message: str


def settle(row: PlanRow, result: RowResult) -> int:
    """Take the step's tokens out of flight, and cut the computed tokens back to the drafts that agree.

    Returns how many leading tokens the step has computed and accepted, or 0 if the row's pages are no longer the
    request's.
    """
    request = row.request
    if row.samples:
        request.num_in_flight -= 1
        request.draft_token_ids = ()
    if row.residency != request.residency:
        return 0
    num_rejected = len(row.draft_token_ids) - max(0, len(result.token_ids) - 1)
    if row.draft_token_ids:
        request.num_computed -= num_rejected
    return row.end - num_rejected if row.samples else row.end


def accept(request: Request, result: RowResult, token_bytes: Sequence[bytes]) -> Finish | None:
    """Append the drawn tokens up to the first that ends the answer; returns the end, if it is reached.

    Raises :class:`RowError` when the grammar refuses what was drawn under its own mask, and whatever else goes
    wrong: it is this request's trouble alone.
    """
    for index, token_id in enumerate(result.token_ids):
        request.token_ids.append(token_id)
        request.unsent_token_ids.append(token_id)
        if result.logprobs is not None:
            request.unsent_logprobs.append(result.logprobs[index])
        try:
            finish = _finish_behind(request, token_id, token_bytes)
        except BaseException as error:
            reraise_exit(error)
            culprit = "The server" if request.grammar is None else "The grammar"
            raise RowError(f"{culprit} failed while the answer was generated: {error}") from error
        if finish is not None:
            return finish
    return None


def score_prompt(group: RequestGroup, row: PlanRow, prompt_logprobs: Sequence[TokenLogprob]) -> None:
    """Append the prompt log-probabilities that are not known yet (a preempted chunk may bring some twice)."""
    if row.score_from is not None:
        known = len(group.prompt_logprobs) - row.score_from
        group.prompt_logprobs.extend(prompt_logprobs[known:])


def is_scored(request: Request, row: PlanRow) -> bool:
    """Whether a request that generates nothing has got all it asked for."""
    return request.sampling.max_tokens == 0 and row.end >= request.prompt_length - 1


def end(
    request: Request, reason: FinishReason, *, stop_reason: str | int | None = None, num_bytes: int | None = None
) -> Finish:
    usage = Usage(
        completion_tokens=request.num_output,
        cached_tokens=request.group.cached_tokens or 0,
        reasoning_tokens=request.thinking.num_tokens,
        accepted_prediction_tokens=request.accepted_prediction_tokens,
        rejected_prediction_tokens=request.rejected_prediction_tokens,
    )
    return Finish(reason=reason, usage=usage, stop_reason=stop_reason, num_bytes=num_bytes)


def with_prediction_counts(finish: Finish, request: Request) -> Finish:
    """``finish`` with what the step that brought it did with the client's prediction."""
    usage = msgspec.structs.replace(
        finish.usage,
        accepted_prediction_tokens=request.accepted_prediction_tokens,
        rejected_prediction_tokens=request.rejected_prediction_tokens,
    )
    return msgspec.structs.replace(finish, usage=usage)


def _finish_behind(request: Request, token_id: int, token_bytes: Sequence[bytes]) -> Finish | None:
    sampling = request.sampling
    text = request.stop_state
    begin = text.num_bytes
    match = text.push(token_bytes[token_id] if token_id < len(token_bytes) else b"")
    is_free = not text.has_stops or _is_free(request)
    request.thinking.push(token_id, token_bytes)
    is_terminated = False
    if request.grammar is not None:
        request.grammar.accept_token(token_id)
        is_terminated = request.grammar.is_terminated()
    if text.has_stops and not (is_free and _is_free(request)):
        # Neither thinking nor a form is cut in two; a stop string begins anew behind them.
        match = None
        text.forget()
    # A complete grammar ends the answer even below the minimum: nothing else is legal then.
    may_stop = request.num_output >= sampling.min_tokens or is_terminated
    if may_stop and token_id in request.group.stop_ids:
        # A stop token that is ordinary text is not shown, unless asked for; an end-of-text token never is.
        is_shown = sampling.include_stop_str_in_output and token_id in sampling.stop_token_ids
        cut = None if is_shown or text.num_bytes == begin else begin
        stop_reason = token_id if token_id in sampling.stop_token_ids else None
        return end(request, "stop", stop_reason=stop_reason, num_bytes=cut)
    if may_stop and match is not None:
        cut = match.end if sampling.include_stop_str_in_output else match.start
        return end(request, "stop", stop_reason=match.stop.decode(errors="replace"), num_bytes=cut)
    if is_terminated:
        return end(request, "stop")
    if request.num_remaining <= 0:
        return end(request, "length")
    return None


def _is_free(request: Request) -> bool:
    """Whether a stop string may end the answer here: outside of thinking, unless asked for, and of every form."""
    if request.thinking.is_thinking:
        return request.thinking.stops_apply
    return request.grammar is None or request.group.message.grammar is None or request.grammar.is_accepting()
