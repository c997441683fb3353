"""The part of the description that chat and text completions ask for with the same fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.messages import SchedulerReady
from server.constraints import constraint_field, grammar_spec
from server.context import ServerContext
from server.errors import BadRequestError
from server.request.description import AnswerRequest, Conversation, Form, Prompt
from server.sampling_request import SamplingFields, sampling_params


def answer_request(
    body: SamplingFields,
    context: ServerContext,
    ready: SchedulerReady,
    *,
    prompt: Conversation | Sequence[Prompt],
    n: int,
    logprobs: int | None,
    names: dict[str, str],
    prompt_logprobs: int | None = None,
    **more: Any,
) -> AnswerRequest:
    """Describe ``body``; ``more`` are the fields of :class:`AnswerRequest` that only one dialect has.

    Raises
    ------
    BadRequestError
        Names the field that is out of range or contradicts another.
    """
    form = Form(spec=grammar_spec(body, max_bytes=context.config.max_constraint_bytes), field=constraint_field(body))
    sampling = sampling_params(
        body,
        config=context.config,
        defaults=context.assets.generation_defaults,
        vocab_size=ready.vocab_size,
        n=n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        encode=context.tokenizer.encode_plain,
    )
    if body.min_tokens is None:
        names = {**names, "min_tokens": "min_new_tokens"}
    return AnswerRequest(
        prompt=prompt,
        sampling=sampling,
        form=form,
        is_lenient=body.lenient,
        grammar_backend=body.grammar_backend,
        skip_special_tokens=body.skip_special_tokens,
        priority=body.priority,
        may_draft=body.speculative,
        is_streamed=body.stream,
        field_names=names,
        **more,
    )


def refuse_stream_options(body: SamplingFields) -> None:
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("'stream_options' needs 'stream' to be true.", param="stream_options")


def refuse_more_logprobs(num: int | None, context: ServerContext, *, param: str) -> None:
    most = context.config.max_top_logprobs
    if num is not None and num > most:
        raise BadRequestError(f"'{param}' is {num}; the range is 0 to {most}.", param=param)
