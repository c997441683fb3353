"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import Response

from scheduler.messages import GenerateRequest
from server.body import read_request
from server.chat.answer import ChatAnswerShape, ChatStreamEncoder, whole_answer
from server.chat.prediction import encode_prediction
from server.chat.prompt import encode_conversation
from server.chat.protocol import ChatCompletionRequest
from server.chat.thinking import reasoning_spec
from server.chat.tool_use import answer_constraint, naming_tool, reading_of, tools_of
from server.choices import ChoiceAssembler
from server.context import ServerContext, context_of
from server.documentation import errors, request_body
from server.errors import BadRequestError, SchedulerError
from server.event_stream import EventStream
from server.generation import start_generation
from server.json_response import JsonResponse
from server.limits import resolve_max_tokens
from server.sampling_request import sampling_params

router = APIRouter(responses=errors(401, 404, 409, 429, 500, 503, 504))


@router.post("/v1/chat/completions", openapi_extra=request_body(ChatCompletionRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    context = context_of(request)
    body = await read_request(ChatCompletionRequest, request, context.config)
    model = context.resolve_model(body.model)
    ready = context.require_ready()
    _refuse_unserved(body, context)
    tools = tools_of(body, context)
    constraint = answer_constraint(body, context, tools)
    conversation = await encode_conversation(context, body, ready, tools)
    prompt_token_ids = conversation.token_ids
    prediction_token_ids = await encode_prediction(context, body.prediction, ready)
    max_tokens, max_tokens_name = _requested_max_tokens(body)
    params = sampling_params(
        body,
        config=context.config,
        defaults=context.assets.generation_defaults,
        vocab_size=ready.vocab_size,
        max_tokens=resolve_max_tokens(
            len(prompt_token_ids), max_tokens, ready, param=max_tokens_name, prompt_param="messages"
        ),
        n=body.n,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=None,
        encode=context.tokenizer.encode_plain,
    )
    options = body.stream_options
    shape = ChatAnswerShape(
        answer_id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=model,
        system_fingerprint=context.system_fingerprint,
        vocabulary=context.tokenizer.vocabulary,
        prompt_token_ids=prompt_token_ids,
        num_top_logprobs=params.logprobs,
        skip_special_tokens=body.skip_special_tokens,
        return_token_ids=body.return_token_ids,
        reading=reading_of(body, context, conversation, tools, is_constrained=constraint.constrains_calls),
        include_usage=options is not None and options.include_usage,
        continuous_usage=options is not None and options.continuous_usage_stats,
    )
    assemblers = [
        ChoiceAssembler(
            context.tokenizer.vocabulary,
            skip_special_tokens=body.skip_special_tokens,
            shown_ids=frozenset() if shape.reading.is_plain else context.format.shown_ids,
        )
        for _ in range(params.n)
    ]
    try:
        generation = await start_generation(
            context,
            request.scope,
            request.receive,
            answer_id=shape.answer_id,
            requests=[
                GenerateRequest(
                    request_id=shape.answer_id,
                    prompt_token_ids=prompt_token_ids,
                    sampling=params,
                    grammar=constraint.spec,
                    grammar_field=constraint.field,
                    reasoning=reasoning_spec(body, context, conversation, constraint),
                    stops_between_forms=constraint.has_free_text,
                    priority=body.priority,
                    may_draft=body.speculative,
                    prediction_token_ids=prediction_token_ids,
                    stream=body.stream,
                )
            ],
            assemblers=assemblers,
        )
    except SchedulerError as error:
        raise naming_tool(error, tools) from None
    if body.lenient or generation.unenforced:
        shape = replace(shape, unenforced=generation.unenforced)
    if body.stream:
        return EventStream(generation, ChatStreamEncoder(shape, assemblers))
    try:
        choices = await generation.collect()
    finally:
        generation.close()
    return JsonResponse(whole_answer(shape, choices))


def _refuse_unserved(body: ChatCompletionRequest, context: ServerContext) -> None:
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("'stream_options' needs 'stream' to be true.", param="stream_options")
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequestError("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    most = context.config.max_top_logprobs
    if body.top_logprobs is not None and body.top_logprobs > most:
        raise BadRequestError(f"'top_logprobs' is {body.top_logprobs}; the range is 0 to {most}.", param="top_logprobs")


def _requested_max_tokens(body: ChatCompletionRequest) -> tuple[int | None, str]:
    if body.max_completion_tokens is None:
        if body.max_tokens == 0:
            raise BadRequestError("'max_tokens' must be at least 1.", param="max_tokens")
        return body.max_tokens, "max_tokens"
    if body.max_tokens not in (None, body.max_completion_tokens):
        raise BadRequestError("'max_tokens' and 'max_completion_tokens' differ; give one of them.", param="max_tokens")
    return body.max_completion_tokens, "max_completion_tokens"
