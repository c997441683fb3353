"""Answers of a text completions request: the whole object, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from scheduler.messages import Finish, PromptLogprobs
from server.choices import ChoiceAssembler, ChoiceDelta, CollectedChoice, PlacedLogprob
from server.completions.echo import Echo
from server.completions.prompts import Prompt
from server.event_stream import DONE, event
from server.logprobs import completion_logprobs
from server.tokenizer import Tokenizer
from server.usage import usage_body, usage_so_far

_encode = msgspec.json.encode


@dataclass(frozen=True, kw_only=True)
class CompletionAnswerShape:
    """What every object of one answer has in common, and what the request wants to see."""

    answer_id: str
    created: int
    model: str
    system_fingerprint: str
    tokenizer: Tokenizer
    prompts: Sequence[Prompt]
    n: int
    """Choices of a prompt that are shown."""
    echo: bool
    with_logprobs: bool
    return_token_ids: bool
    include_usage: bool = False
    continuous_usage: bool = False
    unenforced: Sequence[str] | None = None
    """JSON pointers of what nothing enforces; ``None``: not shown, since the request did not allow any."""

    def header(self) -> dict[str, Any]:
        header: dict[str, Any] = {
            "id": self.answer_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }
        if self.unenforced is not None:
            header["unenforced"] = list(self.unenforced)
        return header

    def logprobs(self, entries: Sequence[PlacedLogprob | tuple[int, int]]) -> dict[str, list[Any]] | None:
        return completion_logprobs(self.tokenizer.vocabulary, entries) if self.with_logprobs else None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)


def whole_answer(
    shape: CompletionAnswerShape, choices: Sequence[CollectedChoice], echoes: Sequence[Echo]
) -> dict[str, Any]:
    """The ``text_completion`` object.

    Parameters
    ----------
    choices
        All that were generated, prompt by prompt. With ``best_of`` the best ``n`` of each prompt are shown, and all
        are counted.
    """
    per_prompt = len(choices) // len(shape.prompts)
    shown: list[dict[str, Any]] = []
    for prompt_index, prompt in enumerate(shape.prompts):
        group = choices[prompt_index * per_prompt : (prompt_index + 1) * per_prompt]
        if per_prompt > shape.n:
            group = sorted(group, key=CollectedChoice.mean_logprob, reverse=True)[: shape.n]
        for choice in group:
            shown.append(_whole_choice(shape, len(shown), choice, prompt, echoes[prompt_index]))
    usages = [(i // per_prompt, choice.finish.usage) for i, choice in enumerate(choices) if choice.finish is not None]
    return {
        **shape.header(),
        "choices": shown,
        "usage": usage_body([len(prompt.token_ids) for prompt in shape.prompts], usages),
    }


def _whole_choice(
    shape: CompletionAnswerShape, index: int, choice: CollectedChoice, prompt: Prompt, echo: Echo
) -> dict[str, Any]:
    finish = choice.finish
    body: dict[str, Any] = {
        "index": index,
        "text": (echo.text if shape.echo else "") + choice.text,
        "logprobs": shape.logprobs([*echo.entries, *choice.logprobs]),
        "finish_reason": None if finish is None else finish.reason,
        "stop_reason": None if finish is None else finish.stop_reason,
    }
    if shape.return_token_ids:
        body["prompt_token_ids"] = prompt.token_ids
        body["token_ids"] = choice.token_ids
    return body


class CompletionStreamEncoder:
    """Encodes a stream's ``text_completion`` events; text alone is put together from bytes prepared once."""

    def __init__(
        self, shape: CompletionAnswerShape, assemblers: Sequence[ChoiceAssembler], echoes: Sequence[Echo]
    ) -> None:
        self._shape = shape
        self._assemblers = assemblers
        self._num_generated = 0
        self._echoes = echoes
        self._header = shape.header()
        opening = b"data: " + _encode(self._header)[:-1]
        ending = b',"usage":null' if shape.include_usage else b""
        self._prefixes = [opening + b',"choices":[{"index":%d,"text":' % index for index in range(len(assemblers))]
        self._suffix = b',"logprobs":null,"finish_reason":null}]' + ending + b"}\n\n"
        self._text_only = not (shape.with_logprobs or shape.return_token_ids or shape.continuous_usage)

    def start(self) -> bytes:
        chunks = []
        for index in range(len(self._assemblers)):
            prompt_index = index // self._shape.n
            text = self._echoes[prompt_index].text if self._shape.echo and not self._shape.with_logprobs else ""
            extra: dict[str, Any] = {}
            if self._shape.return_token_ids:
                extra = {"prompt_token_ids": self._shape.prompts[prompt_index].token_ids, "token_ids": []}
            if text or extra:
                chunks.append(self._chunk(index, text, (), extra))
        return b"".join(chunks)

    def prompt_logprobs(self, prompt_index: int, message: PromptLogprobs) -> bytes:
        echo = self._echoes[prompt_index]
        echo.place(message)
        if not self._shape.with_logprobs:
            return b""  # asked for only to score a prompt without generating
        first = prompt_index * self._shape.n
        return b"".join(
            self._chunk(index, echo.text, echo.entries, {}) for index in range(first, first + self._shape.n)
        )

    def delta(self, choice: int, delta: ChoiceDelta) -> bytes:
        self._num_generated += len(delta.token_ids)
        if self._text_only:
            body = self._prefixes[choice] + _encode(delta.text) + self._suffix if delta.text else b""
        elif delta.text or delta.logprobs or (self._shape.return_token_ids and delta.token_ids):
            extra = {"token_ids": list(delta.token_ids)} if self._shape.return_token_ids else {}
            body = self._chunk(choice, delta.text, delta.logprobs, extra)
        else:
            body = b""
        return body if delta.finish is None else body + self._finish(choice, delta.finish)

    def end(self) -> bytes:
        if not self._shape.include_usage:
            return DONE
        usages = [
            (index // self._shape.n, assembler.finish.usage)
            for index, assembler in enumerate(self._assemblers)
            if assembler.finish is not None
        ]
        usage = usage_body([len(prompt.token_ids) for prompt in self._shape.prompts], usages)
        return event({**self._header, "choices": [], "usage": usage}) + DONE

    def _finish(self, choice: int, finish: Finish) -> bytes:
        extra = {"finish_reason": finish.reason, "stop_reason": finish.stop_reason}
        return self._chunk(choice, "", None, extra)

    def _chunk(
        self,
        choice: int,
        text: str,
        logprobs: Sequence[PlacedLogprob | tuple[int, int]] | None,
        extra: dict[str, Any],
    ) -> bytes:
        shown = self._shape.logprobs(logprobs) if logprobs else None
        chunk: dict[str, Any] = {
            **self._header,
            "choices": [{"index": choice, "text": text, "logprobs": shown, "finish_reason": None, **extra}],
        }
        if self._shape.continuous_usage:
            chunk["usage"] = usage_so_far(self._shape.num_prompt_tokens, self._num_generated)
        elif self._shape.include_usage:
            chunk["usage"] = None
        return event(chunk)
