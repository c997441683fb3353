"""``POST /v1/completions``."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import Response

from sampling.params import SamplingParams
from scheduler.messages import GenerateRequest, SchedulerReady
from server.body import read_request
from server.choices import ChoiceAssembler
from server.completions.answer import CompletionAnswerShape, CompletionStreamEncoder, whole_answer
from server.completions.echo import Echo
from server.completions.prompts import Prompt, read_prompts
from server.completions.protocol import CompletionRequest
from server.constraints import constraint_field, grammar_spec
from server.context import ServerContext, context_of
from server.documentation import errors, request_body
from server.errors import BadRequestError
from server.event_stream import EventStream
from server.generation import start_generation
from server.json_response import JsonResponse
from server.limits import resolve_max_tokens
from server.sampling_request import sampling_params

router = APIRouter(responses=errors(401, 404, 409, 429, 500, 503, 504))


@router.post("/v1/completions", openapi_extra=request_body(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue a text."""
    context = context_of(request)
    body = await read_request(CompletionRequest, request, context.config)
    model = context.resolve_model(body.model)
    ready = context.require_ready()
    num_generated = _check(body, context)
    grammar = grammar_spec(body, max_bytes=context.config.max_constraint_bytes)
    prompts = await read_prompts(context, body, ready)
    if len(prompts) * num_generated > max(context.config.max_prompts, context.config.max_choices):
        raise BadRequestError(
            f"{len(prompts)} prompts with {num_generated} choices each are too many for one request.", param="n"
        )
    params = [_params(context, body, ready, prompt, num_generated) for prompt in prompts]
    options = body.stream_options
    shape = CompletionAnswerShape(
        answer_id=f"cmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=model,
        system_fingerprint=context.system_fingerprint,
        tokenizer=context.tokenizer,
        prompts=prompts,
        n=body.n,
        echo=body.echo,
        with_logprobs=body.logprobs is not None,
        return_token_ids=body.return_token_ids,
        include_usage=options is not None and options.include_usage,
        continuous_usage=options is not None and options.continuous_usage_stats,
    )
    assemblers = [
        ChoiceAssembler(
            context.tokenizer.vocabulary,
            skip_special_tokens=body.skip_special_tokens,
            text_offset=len(prompt.text) if body.echo else 0,
        )
        for prompt in prompts
        for _ in range(num_generated)
    ]
    generation = await start_generation(
        context,
        request.scope,
        request.receive,
        answer_id=shape.answer_id,
        requests=[
            GenerateRequest(
                request_id=shape.answer_id if len(prompts) == 1 else f"{shape.answer_id}:{index}",
                prompt_token_ids=prompt.token_ids,
                sampling=params[index],
                grammar=grammar,
                grammar_field=constraint_field(body),
                priority=body.priority,
                may_draft=body.speculative,
                stream=body.stream,
            )
            for index, prompt in enumerate(prompts)
        ],
        assemblers=assemblers,
    )
    if body.lenient or generation.unenforced:
        shape = replace(shape, unenforced=generation.unenforced)
    echoes = [Echo(prompt, context.tokenizer) for prompt in prompts]
    if body.stream:
        return EventStream(generation, CompletionStreamEncoder(shape, assemblers, echoes))
    try:
        choices = await generation.collect(lambda index, message: echoes[index].place(message))
    finally:
        generation.close()
    return JsonResponse(whole_answer(shape, choices, echoes))


def _check(body: CompletionRequest, context: ServerContext) -> int:
    """Contradictions between fields; returns how many choices of each prompt to generate."""
    if body.n > context.config.max_choices:
        raise BadRequestError(f"'n' is {body.n}; the largest allowed is {context.config.max_choices}.", param="n")
    best_of = body.best_of if body.best_of is not None else body.n
    if best_of < body.n:
        raise BadRequestError(f"'best_of' is {best_of}, less than 'n', {body.n}.", param="best_of")
    if best_of > context.config.max_choices:
        raise BadRequestError(
            f"'best_of' is {best_of}; the largest allowed is {context.config.max_choices}.", param="best_of"
        )
    if best_of > body.n and body.stream:
        raise BadRequestError("'best_of' above 'n' cannot be streamed: the best is known at the end.", param="best_of")
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("'stream_options' needs 'stream' to be true.", param="stream_options")
    most = context.config.max_top_logprobs
    if body.logprobs is not None and body.logprobs > most:
        raise BadRequestError(f"'logprobs' is {body.logprobs}; the range is 0 to {most}.", param="logprobs")
    if body.max_tokens == 0 and not body.echo:
        raise BadRequestError("'max_tokens' of 0 needs 'echo': there would be no answer.", param="max_tokens")
    return best_of


def _params(
    context: ServerContext, body: CompletionRequest, ready: SchedulerReady, prompt: Prompt, num_generated: int
) -> SamplingParams:
    prompt_logprobs = body.logprobs if body.echo else None
    if body.max_tokens == 0 and prompt_logprobs is None:
        prompt_logprobs = 0  # the scheduler generates nothing only for a prompt that is scored
    logprobs = body.logprobs
    if num_generated > body.n and logprobs is None:
        logprobs = 0  # best_of ranks by them
    return sampling_params(
        body,
        config=context.config,
        defaults=context.assets.generation_defaults,
        vocab_size=ready.vocab_size,
        max_tokens=resolve_max_tokens(
            len(prompt.token_ids), body.max_tokens, ready, param="max_tokens", prompt_param="prompt"
        ),
        n=num_generated,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        encode=context.tokenizer.encode_plain,
    )
