"""OpenAI's predicted outputs: what the client expects the answer to be, as tokens for the drafter."""

from __future__ import annotations

from scheduler.messages import SchedulerReady
from server.chat.protocol import Prediction
from server.context import ServerContext
from server.errors import BadRequestError


async def encode_prediction(context: ServerContext, prediction: Prediction | None, ready: SchedulerReady) -> list[int]:
    """Token ids of the prediction.

    Raises
    ------
    BadRequestError
        It is longer than any answer could be.
    """
    if prediction is None:
        return []
    content = prediction.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    tokenizer, longest = context.tokenizer, ready.context_length
    if tokenizer.fewest_tokens(text) <= longest:
        token_ids = await tokenizer.run(tokenizer.encode_plain, text)
        if len(token_ids) <= longest:
            return token_ids
    raise BadRequestError(
        f"'prediction.content' is longer than the {longest} tokens that prompt and answer may have.",
        param="prediction.content",
    )
