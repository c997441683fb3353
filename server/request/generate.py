"""From what is asked to the scheduler's requests, and their start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request

from sampling.params import SamplingParams
from sampling.validation import SamplingParamsError, validate_sampling_params
from scheduler.messages import GenerateRequest, SchedulerReady
from server.choices import ChoiceAssembler
from server.context import ServerContext
from server.errors import BadRequestError, SchedulerError
from server.formats.reader import Reading
from server.generation import Generation, start_generation
from server.limits import resolve_max_tokens
from server.request.constraint import answer_constraint, naming_tool
from server.request.description import AnswerRequest, Conversation, Prompt
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
        The request cannot be served.
    ClientDisconnectedError
    """
    constraint = answer_constraint(context, asked)
    reading = reasoning = None
    if isinstance(asked.prompt, Conversation):
        prompts: Sequence[Prompt] = [await encode_conversation(context, asked.prompt, ready)]
        reading = Reading(
            format=context.format,
            thinking=prompts[0].thinking,
            tools=asked.tools,
            is_constrained=constraint.constrains_calls,
            separates_reasoning=asked.thinking.is_separate,
            shows_reasoning=asked.thinking.is_shown,
        )
        reasoning = context.format.reasoning_spec(
            prompts[0].thinking,
            budget=asked.thinking.budget,
            stops_apply=asked.thinking.stops_apply,
            has_form=constraint.spec is not None,
            constrains_calls=constraint.constrains_calls,
        )
        if reading.is_plain:
            reading = None
    else:
        prompts = asked.prompt
    prediction_token_ids = await encode_prediction(context, asked.prediction, ready) if asked.prediction else []
    requests = [
        GenerateRequest(
            request_id=answer_id if len(prompts) == 1 else f"{answer_id}:{index}",
            prompt_token_ids=prompt.token_ids,
            sampling=_sampling(asked, prompt, ready),
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
    try:
        generation = await start_generation(
            context, request.scope, request.receive, answer_id=answer_id, requests=requests, assemblers=assemblers
        )
    except SchedulerError as error:
        raise naming_tool(error, asked.tools) from None
    unenforced = generation.unenforced if asked.is_lenient or generation.unenforced else None
    return StartedAnswer(
        answer_id=answer_id, generation=generation, prompts=prompts, reading=reading, unenforced=unenforced
    )


def _sampling(asked: AnswerRequest, prompt: Prompt, ready: SchedulerReady) -> SamplingParams:
    max_tokens = resolve_max_tokens(
        len(prompt.token_ids),
        asked.max_tokens,
        ready,
        param=asked.name_of("max_tokens"),
        prompt_param=asked.name_of("prompt"),
    )
    params = msgspec.structs.replace(asked.sampling, max_tokens=max_tokens)
    try:
        validate_sampling_params(params, vocab_size=ready.vocab_size)
    except SamplingParamsError as error:
        name = asked.name_of(error.param)
        message = str(error).replace(f"'{error.param}'", f"'{name}'")
        raise BadRequestError(message, param=name, code="invalid_value") from error
    return params
