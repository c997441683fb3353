"""``POST /tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from server.chat.protocol import ChatCompletionRequest, ChatMessage
from server.chat.request import conversation
from server.context import context_of
from server.errors import BadRequestError
from server.http.body import read_request
from server.http.documentation import errors, request_body
from server.http.json_response import JsonResponse
from server.request.limits import refuse_hopeless_text
from server.request.prompt import encode_conversation
from server.validation import List, RequestModel

router = APIRouter(responses=errors(401, 500))


class TokenizeRequest(RequestModel):
    """A prompt, or messages to render first."""

    model: str | None = None
    """Left out: the served model."""
    prompt: str | None = None
    """A text; give this or `messages`."""
    messages: List[ChatMessage] | None = Field(default=None, min_length=1)
    """A conversation, which the chat template renders."""
    add_special_tokens: bool = True
    """Whether a `prompt` begins with the BOS token, where the model wants one."""
    add_generation_prompt: bool | None = None
    """As in chat completions."""
    continue_final_message: bool = False
    """As in chat completions."""
    chat_template_kwargs: dict[str, Any] | None = None
    """As in chat completions."""
    return_token_strs: bool = False
    """Whether the answer has each token's text, too."""


class DetokenizeRequest(RequestModel):
    model: str | None = None
    """Left out: the served model."""
    tokens: List[Annotated[int, Field(ge=0, lt=2**31)]]
    """Token ids."""
    skip_special_tokens: bool = False
    """Whether special tokens are left out of the text."""


@router.post("/tokenize", openapi_extra=request_body(TokenizeRequest), responses=errors(404, 503))
async def tokenize(request: Request) -> Response:
    """Token ids of a text or of a rendered conversation."""
    context = context_of(request)
    config, tokenizer = context.config, context.tokenizer
    body = await read_request(TokenizeRequest, request, config)
    context.resolve_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise BadRequestError("Give either 'prompt' or 'messages'.", param="prompt")
    ready = context.require_ready()
    if body.prompt is not None:
        refuse_hopeless_text(tokenizer.fewest_tokens(body.prompt), ready, param="prompt")
        add = body.add_special_tokens
        token_ids = await tokenizer.run(lambda text: tokenizer.encode_prompt(text, add_special_tokens=add), body.prompt)
    else:
        chat = ChatCompletionRequest(
            messages=body.messages or [],
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        token_ids = (await encode_conversation(context, conversation(chat, context), ready)).token_ids
    answer: dict[str, Any] = {
        "tokens": token_ids,
        "count": len(token_ids),
        "max_model_len": context.assets.context_length,
    }
    if body.return_token_strs:
        answer["token_strs"] = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in token_ids]
    return JsonResponse(answer)


@router.post("/detokenize", openapi_extra=request_body(DetokenizeRequest), responses=errors(404))
async def detokenize(request: Request) -> Response:
    """Text of token ids."""
    context = context_of(request)
    config = context.config
    body = await read_request(DetokenizeRequest, request, config)
    context.resolve_model(body.model)
    size = len(context.tokenizer.vocabulary)
    for index, token_id in enumerate(body.tokens):
        if token_id >= size:
            raise BadRequestError(
                f"'tokens[{index}]' is {token_id}; the tokenizer's ids end at {size - 1}.",
                param=f"tokens[{index}]",
                code="invalid_token_id",
            )
    text = context.tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)
    return JsonResponse({"prompt": text})
