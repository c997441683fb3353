"""Answers of a chat completions request: the whole object, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from constrained.vocabulary import Vocabulary
from scheduler.messages import Finish, PromptLogprobs
from server.answer.events import End, collect
from server.chat.message_body import DeltaWriter, finish_reason, message_body
from server.choices import ChoiceAssembler, ChoiceDelta, CollectedChoice, PlacedLogprob
from server.event_stream import DONE, event
from server.formats.reader import Reading
from server.logprobs import chat_logprobs
from server.usage import usage_body, usage_so_far

_encode = msgspec.json.encode


@dataclass(frozen=True, kw_only=True)
class ChatAnswerShape:
    """What every object of one answer has in common, and what the request wants to see."""

    answer_id: str
    created: int
    model: str
    system_fingerprint: str
    vocabulary: Vocabulary
    prompt_token_ids: Sequence[int]
    num_top_logprobs: int | None
    """``None``: no log-probabilities."""
    skip_special_tokens: bool
    return_token_ids: bool
    reading: Reading
    include_usage: bool = False
    continuous_usage: bool = False
    unenforced: Sequence[str] | None = None
    """JSON pointers of what nothing enforces; ``None``: not shown, since the request did not allow any."""

    @property
    def is_legacy(self) -> bool:
        """Whether calls are answered in the terms of ``functions``."""
        return self.reading.tools is not None and self.reading.tools.is_legacy

    def header(self, kind: str) -> dict[str, Any]:
        header: dict[str, Any] = {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "service_tier": "default",
        }
        if self.unenforced is not None:
            header["unenforced"] = list(self.unenforced)
        return header

    def logprobs(self, placed: Sequence[PlacedLogprob]) -> dict[str, Any] | None:
        if self.num_top_logprobs is None:
            return None
        return chat_logprobs(
            self.vocabulary, placed, num_top=self.num_top_logprobs, skip_special_tokens=self.skip_special_tokens
        )


def whole_answer(shape: ChatAnswerShape, choices: Sequence[CollectedChoice]) -> dict[str, Any]:
    """The ``chat.completion`` object."""
    answer = shape.header("chat.completion")
    answer["choices"] = [_whole_choice(shape, index, choice) for index, choice in enumerate(choices)]
    answer["usage"] = usage_body(
        [len(shape.prompt_token_ids)], [(0, choice.finish.usage) for choice in choices if choice.finish is not None]
    )
    if shape.return_token_ids:
        answer["prompt_token_ids"] = list(shape.prompt_token_ids)
    return answer


class ChatStreamEncoder:
    """Encodes a stream's ``chat.completion.chunk`` events.

    A chunk with nothing but text is put together from bytes prepared once; that is what nearly every chunk is.
    """

    def __init__(self, shape: ChatAnswerShape, assemblers: Sequence[ChoiceAssembler]) -> None:
        self._shape = shape
        self._assemblers = assemblers
        self._num_generated = 0
        self._header = shape.header("chat.completion.chunk")
        opening = b"data: " + _encode(self._header)[:-1]
        ending = b',"usage":null' if shape.include_usage else b""
        self._prefixes = [
            opening + b',"choices":[{"index":%d,"delta":{"content":' % index for index in range(len(assemblers))
        ]
        self._suffix = b'},"logprobs":null,"finish_reason":null}]' + ending + b"}\n\n"
        self._text_only = shape.num_top_logprobs is None and not shape.return_token_ids and not shape.continuous_usage
        self._readers = [] if shape.reading.is_plain else [shape.reading.reader() for _ in assemblers]
        self._writers = [DeltaWriter(is_legacy=shape.is_legacy) for _ in self._readers]

    def start(self) -> bytes:
        chunks = []
        for index in range(len(self._assemblers)):
            extra = {}
            if self._shape.return_token_ids and index == 0:
                extra["prompt_token_ids"] = list(self._shape.prompt_token_ids)
            delta = {"role": "assistant", "content": "", "refusal": None}
            chunks.append(self._chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, extra))
        return b"".join(chunks)

    def prompt_logprobs(self, prompt_index: int, message: PromptLogprobs) -> bytes:
        return b""  # chat has no echo

    def delta(self, choice: int, delta: ChoiceDelta) -> bytes:
        self._num_generated += len(delta.token_ids)
        if self._readers:
            return self._read_delta(choice, delta)
        if self._text_only:
            body = self._prefixes[choice] + _encode(delta.text) + self._suffix if delta.text else b""
        elif delta.text or delta.logprobs or (self._shape.return_token_ids and delta.token_ids):
            body = self._full_delta(choice, delta)
        else:
            body = b""
        return body if delta.finish is None else body + self._finish(choice, delta.finish, delta.finish.reason)

    def end(self) -> bytes:
        return self._usage_chunk() + DONE if self._shape.include_usage else DONE

    def _read_delta(self, choice: int, delta: ChoiceDelta) -> bytes:
        """Chunks of an answer that may hold thinking and calls."""
        events = self._readers[choice].read(delta.text, delta.finish)
        bodies = self._writers[choice].deltas(events)
        chunks: list[bytes] = []
        if not self._text_only and (delta.logprobs or (self._shape.return_token_ids and delta.token_ids)):
            # Log-probabilities and ids are the tokens', whatever the parser makes of their text.
            chunks.append(self._full_delta(choice, delta, bodies.pop(0) if bodies else {}))
        for body in bodies:
            if self._text_only and len(body) == 1 and "content" in body:
                chunks.append(self._prefixes[choice] + _encode(body["content"]) + self._suffix)
            else:
                chunks.append(self._chunk({"index": choice, "delta": body, "logprobs": None, "finish_reason": None}))
        if events and isinstance(end := events[-1], End):
            chunks.append(self._finish(choice, end.finish, finish_reason(end, is_legacy=self._shape.is_legacy)))
        return b"".join(chunks)

    def _full_delta(self, choice: int, delta: ChoiceDelta, body_delta: dict[str, Any] | None = None) -> bytes:
        body: dict[str, Any] = {
            "index": choice,
            "delta": {"content": delta.text} if body_delta is None else body_delta,
            "logprobs": self._shape.logprobs(delta.logprobs),
            "finish_reason": None,
        }
        if self._shape.return_token_ids:
            body["token_ids"] = list(delta.token_ids)
        return self._chunk(body)

    def _finish(self, choice: int, finish: Finish, reason: str) -> bytes:
        return self._chunk(
            {
                "index": choice,
                "delta": {},
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": finish.stop_reason,
            }
        )

    def _chunk(self, choice: dict[str, Any], extra: dict[str, Any] | None = None) -> bytes:
        chunk = {**self._header, "choices": [choice], **(extra or {})}
        if self._shape.continuous_usage:
            chunk["usage"] = usage_so_far(len(self._shape.prompt_token_ids), self._num_generated)
        elif self._shape.include_usage:
            chunk["usage"] = None
        return event(chunk)

    def _usage_chunk(self) -> bytes:
        usage = usage_body(
            [len(self._shape.prompt_token_ids)],
            [(0, assembler.finish.usage) for assembler in self._assemblers if assembler.finish is not None],
        )
        return event({**self._header, "choices": [], "usage": usage})


def _whole_choice(shape: ChatAnswerShape, index: int, choice: CollectedChoice) -> dict[str, Any]:
    finish = choice.finish
    answer = collect(shape.reading.reader().read(choice.text, finish))
    body: dict[str, Any] = {
        "index": index,
        "message": message_body(answer, is_legacy=shape.is_legacy),
        "logprobs": shape.logprobs(choice.logprobs),
        "finish_reason": None if answer.end is None else finish_reason(answer.end, is_legacy=shape.is_legacy),
        "stop_reason": None if finish is None else finish.stop_reason,
    }
    if shape.return_token_ids:
        body["token_ids"] = choice.token_ids
    return body
