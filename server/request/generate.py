"""From what is asked to the scheduler's requests, and their start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request

from sampling.params import SamplingParams
from sampling.validation import SamplingParamsError, validate_sampling_params
from scheduler.messages import GenerateRequest, SchedulerReady
from server.context import ServerContext
from server.errors import ApiError, BadRequestError, SchedulerError
from server.formats.reader import Reading
from server.generation.choices import ChoiceAssembler
from server.generation.generation import Generation, start_generation
from server.request.constraint import answer_constraint, name_tool
from server.request.description import AnswerRequest, Conversation, Prompt
from server.request.limits import resolve_max_tokens
from server.request.prompt import encode_conversation, encode_prediction


@dataclass(frozen=True, kw_only=True)
class StartedAnswer:
    """An answer whose prompts were all admitted."""

    answer_id: str
    generation: Generation
    prompts: Sequence[Prompt]
    reading: Reading | None
    """How its text is read; ``None``: all of it is words."""
    unenforced: Sequence[str] | None
    """JSON pointers of what nothing enforces; ``None``: not shown, since the request did not allow any."""


async def start_answer(
    context: ServerContext, request: Request, asked: AnswerRequest, ready: SchedulerReady, *, answer_id: str
) -> StartedAnswer:
    """Ask the scheduler, and wait until it has admitted every prompt.

    Raises
    ------
    ApiError
        The request cannot be served; it names the dialect's field.
    ClientDisconnectedError
    """
    try:
        prompts, reading, requests = await _requests(context, asked, ready, answer_id)
        assemblers = [
            ChoiceAssembler(
                context.tokenizer.vocabulary,
                skip_special_tokens=asked.skip_special_tokens,
                text_offset=len(prompt.text) if asked.echoes else 0,
                shown_ids=frozenset() if reading is None else context.format.shown_ids,
            )
            for prompt in prompts
            for _ in range(asked.sampling.n)
        ]
        generation = await start_generation(
            context, request.scope, request.receive, answer_id=answer_id, requests=requests, assemblers=assemblers
        )
    except ApiError as error:
        if isinstance(error, SchedulerError):
            name_tool(error, asked.tools)
        _name_as_the_dialect_does(error, asked.field_names)
        raise
    return StartedAnswer(
        answer_id=answer_id,
        generation=generation,
        prompts=prompts,
        reading=reading,
        unenforced=generation.unenforced if asked.is_lenient or generation.unenforced else None,
    )


async def _requests(
    context: ServerContext, asked: AnswerRequest, ready: SchedulerReady, answer_id: str
) -> tuple[Sequence[Prompt], Reading | None, list[GenerateRequest]]:
    """The prompts, how the answers to them are read, and what the scheduler gets for each."""
    constraint = answer_constraint(context, asked)
    reading = reasoning = None
    prompt_name = "prompt"
    if isinstance(asked.prompt, Conversation):
        prompt_name = "messages"
        prompts: Sequence[Prompt] = [await encode_conversation(context, asked.prompt, ready)]
        reading = Reading(
            format=context.format,
            thinking=prompts[0].thinking,
            tools=asked.tools,
            is_constrained=constraint.constrains_calls,
            wishes=asked.thinking,
        )
        reasoning = context.format.reasoning_spec(
            prompts[0].thinking,
            asked.thinking,
            has_form=constraint.spec is not None,
            constrains_calls=constraint.constrains_calls,
        )
    else:
        prompts = asked.prompt
    prediction_token_ids = await encode_prediction(context, asked.prediction, ready) if asked.prediction else []
    requests = [
        GenerateRequest(
            request_id=answer_id if len(prompts) == 1 else f"{answer_id}:{index}",
            prompt_token_ids=prompt.token_ids,
            sampling=_sampling(asked, prompt, ready, prompt_name),
            grammar=constraint.spec,
            grammar_field=constraint.field,
            reasoning=reasoning,
            stops_between_forms=constraint.has_free_text,
            priority=asked.priority,
            may_draft=asked.may_draft,
            prediction_token_ids=prediction_token_ids,
            stream=asked.is_streamed,
        )
        for index, prompt in enumerate(prompts)
    ]
    return prompts, None if reading is None or reading.is_plain else reading, requests


def _sampling(asked: AnswerRequest, prompt: Prompt, ready: SchedulerReady, prompt_name: str) -> SamplingParams:
    num_prompt_tokens = len(prompt.token_ids)
    max_tokens = resolve_max_tokens(
        num_prompt_tokens, asked.max_tokens, ready, param="max_tokens", prompt_param=prompt_name
    )
    params = msgspec.structs.replace(asked.sampling, max_tokens=max_tokens)
    try:
        validate_sampling_params(params, vocab_size=ready.vocab_size)
    except SamplingParamsError as error:
        raise BadRequestError(str(error), param=error.param, code="invalid_value") from error
    return params


def _name_as_the_dialect_does(error: ApiError, names: Mapping[str, str]) -> None:
    param = error.param or ""
    field = re.split(r"[.\[]", param, maxsplit=1)[0]
    if field in names:
        error.param = names[field] + param[len(field) :]
        error.message = error.message.replace(f"'{field}", f"'{names[field]}")
