"""The prompts of a text completions request."""

from __future__ import annotations

from scheduler.messages import SchedulerReady
from server.completions.protocol import CompletionRequest
from server.context import ServerContext
from server.errors import BadRequestError
from server.request.description import Prompt
from server.request.limits import refuse_hopeless_text


async def read_prompts(context: ServerContext, body: CompletionRequest, ready: SchedulerReady) -> list[Prompt]:
    """Encode every prompt; its text is as given, or decoded from the ids, for ``echo``.

    Raises
    ------
    BadRequestError
        No prompt, too many, an empty one, a token id the model does not have, or one that cannot fit.
    """
    given = body.prompt
    single = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    items: list[str | list[int]] = [given] if single else list(given)  # type: ignore[list-item, arg-type]
    if not items:
        raise BadRequestError("'prompt' is an empty list.", param="prompt")
    most = context.config.max_prompts
    if len(items) > most:
        raise BadRequestError(f"'prompt' has {len(items)} prompts; the most allowed are {most}.", param="prompt")
    return [
        await _read(context, item, "prompt" if single else f"prompt[{index}]", body.add_special_tokens, ready)
        for index, item in enumerate(items)
    ]


async def _read(
    context: ServerContext, item: str | list[int], param: str, add_special_tokens: bool, ready: SchedulerReady
) -> Prompt:
    tokenizer = context.tokenizer
    if isinstance(item, str):
        refuse_hopeless_text(tokenizer.fewest_tokens(item), ready, param=param)
        token_ids = await tokenizer.run(
            lambda text: tokenizer.encode_prompt(text, add_special_tokens=add_special_tokens), item
        )
        prompt = Prompt(token_ids=token_ids, text=item)
    else:
        if item and max(item) >= ready.vocab_size:
            index = next(i for i, token_id in enumerate(item) if token_id >= ready.vocab_size)
            raise BadRequestError(
                f"'{param}[{index}]' is {item[index]}; the model's token ids end at {ready.vocab_size - 1}.",
                param=f"{param}[{index}]",
                code="invalid_token_id",
            )
        prompt = Prompt(token_ids=item, text=tokenizer.decode(item))
    if not prompt.token_ids:
        raise BadRequestError(f"'{param}' has no tokens; the model needs at least one to begin with.", param=param)
    return prompt
