"""What the answers of OpenAI's two completions endpoints have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from scheduler.messages import Finish
from server.context import ServerContext
from server.generation.choices import ChoiceDelta, CollectedChoice
from server.generation.usage import usage_body, usage_so_far
from server.http.event_stream import DONE, event
from server.request.fields import SamplingFields
from server.request.generate import StartedAnswer

_encode = msgspec.json.encode


class OpenAIAnswer(ABC):
    """Writes one answer, whole or as the events of a stream.

    A chunk with nothing but text is put together from bytes prepared once; that is what nearly every chunk is.
    """

    kind: ClassVar[str]
    """``object`` of a chunk."""
    text_begin: ClassVar[bytes]
    """What stands before the text in a choice of a chunk."""
    text_end: ClassVar[bytes]

    def __init__(
        self, context: ServerContext, body: SamplingFields, started: StartedAnswer, model: str, **header: Any
    ) -> None:
        self.prompts = started.prompts
        self.assemblers = started.generation.assemblers
        self.returns_token_ids = body.return_token_ids
        self.header: dict[str, Any] = {
            "id": started.answer_id,
            "object": self.kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": context.system_fingerprint,
            **header,
        }
        if started.unenforced is not None:
            self.header["unenforced"] = list(started.unenforced)
        options = body.stream_options
        self._includes_usage = options is not None and options.include_usage
        self._continuous_usage = options is not None and options.continuous_usage_stats
        self._num_prompt_tokens = sum(len(prompt.token_ids) for prompt in self.prompts)
        self._num_generated = 0
        opening = b"data: " + _encode(self.header)[:-1] + b',"choices":[{"index":%d,' + self.text_begin
        self._prefixes = [opening % index for index in range(len(self.assemblers))]
        ending = b',"usage":null' if self._includes_usage else b""
        self._suffix = self.text_end + b',"logprobs":null,"finish_reason":null}]' + ending + b"}\n\n"
        self.is_text_only = not (self.shows_logprobs or self.returns_token_ids or self._continuous_usage)

    @property
    @abstractmethod
    def shows_logprobs(self) -> bool: ...

    @abstractmethod
    def whole(self, choices: Sequence[CollectedChoice]) -> dict[str, Any]:
        """The answer's object."""

    @abstractmethod
    def full_delta(self, choice: int, delta: ChoiceDelta) -> bytes:
        """A chunk with all that was asked for."""

    @abstractmethod
    def finish(self, choice: int, finish: Finish) -> bytes:
        """The last chunk of a choice."""

    def delta(self, choice: int, delta: ChoiceDelta) -> bytes:
        self._num_generated += len(delta.token_ids)
        if self.is_text_only:
            body = self._prefixes[choice] + _encode(delta.text) + self._suffix if delta.text else b""
        elif delta.text or self.has_token_data(delta):
            body = self.full_delta(choice, delta)
        else:
            body = b""
        return body if delta.finish is None else body + self.finish(choice, delta.finish)

    def end(self) -> bytes:
        if not self._includes_usage:
            return DONE
        usage = self.usage(assembler.finish for assembler in self.assemblers)
        return event({**self.header, "choices": [], "usage": usage}) + DONE

    def has_token_data(self, delta: ChoiceDelta) -> bool:
        """Whether ``delta`` brings something of its tokens that is shown, apart from their text."""
        return bool(delta.logprobs or (self.returns_token_ids and delta.token_ids))

    def text_chunk(self, choice: int, text: str) -> bytes:
        return self._prefixes[choice] + _encode(text) + self._suffix

    def chunk(self, choice: dict[str, Any], **extra: Any) -> bytes:
        chunk = {**self.header, "choices": [choice], **extra}
        if self._continuous_usage:
            chunk["usage"] = usage_so_far(self._num_prompt_tokens, self._num_generated)
        elif self._includes_usage:
            chunk["usage"] = None
        return event(chunk)

    def usage(self, finishes: Iterable[Finish | None]) -> dict[str, Any]:
        """The ``usage`` object, from the ends of all choices, prompt by prompt."""
        per_prompt = len(self.assemblers) // len(self.prompts)
        usages = [(i // per_prompt, finish.usage) for i, finish in enumerate(finishes) if finish is not None]
        return usage_body([len(prompt.token_ids) for prompt in self.prompts], usages)
