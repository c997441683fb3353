"""From a text completions body to what is asked of the model."""

from __future__ import annotations

from scheduler.messages import SchedulerReady
from server.completions.prompts import read_prompts
from server.completions.protocol import CompletionRequest
from server.context import ServerContext
from server.errors import BadRequestError
from server.request.description import AnswerRequest
from server.request.from_fields import answer_request, refuse_more_logprobs, refuse_stream_options


async def completion_request(body: CompletionRequest, context: ServerContext, ready: SchedulerReady) -> AnswerRequest:
    """Describe ``body``.

    Raises
    ------
    BadRequestError
        Names the field that is wrong or contradicts another.
    """
    num_generated = _num_generated(body, context)
    refuse_stream_options(body)
    refuse_more_logprobs(body.logprobs, context, param="logprobs")
    if body.max_tokens == 0 and not body.echo:
        raise BadRequestError("'max_tokens' of 0 needs 'echo': there would be no answer.", param="max_tokens")
    prompts = await read_prompts(context, body, ready)
    if len(prompts) * num_generated > max(context.config.max_prompts, context.config.max_choices):
        raise BadRequestError(
            f"{len(prompts)} prompts with {num_generated} choices each are too many for one request.", param="n"
        )
    prompt_logprobs = body.logprobs if body.echo else None
    if body.max_tokens == 0 and prompt_logprobs is None:
        prompt_logprobs = 0  # the scheduler generates nothing only for a prompt that is scored
    logprobs = body.logprobs
    if num_generated > body.n and logprobs is None:
        logprobs = 0  # best_of ranks by them
    return answer_request(
        body,
        context,
        ready,
        prompt=prompts,
        n=num_generated,
        max_tokens=body.max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        echoes=body.echo,
        names={},
    )


def _num_generated(body: CompletionRequest, context: ServerContext) -> int:
    """How many choices of each prompt to generate."""
    most = context.config.max_choices
    if body.n > most:
        raise BadRequestError(f"'n' is {body.n}; the largest allowed is {most}.", param="n")
    best_of = body.best_of if body.best_of is not None else body.n
    if best_of < body.n:
        raise BadRequestError(f"'best_of' is {best_of}, less than 'n', {body.n}.", param="best_of")
    if best_of > most:
        raise BadRequestError(f"'best_of' is {best_of}; the largest allowed is {most}.", param="best_of")
    if best_of > body.n and body.stream:
        raise BadRequestError("'best_of' above 'n' cannot be streamed: the best is known at the end.", param="best_of")
    return best_of
