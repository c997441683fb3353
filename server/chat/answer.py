"""Answers of a chat completions request: the whole object, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.messages import Finish, PromptLogprobs
from server.answer.events import End, collect
from server.chat.message_body import DeltaWriter, finish_reason, message_body
from server.chat.protocol import ChatCompletionRequest
from server.context import ServerContext
from server.generation.choices import ChoiceDelta, CollectedChoice, PlacedLogprob
from server.generation.logprobs import chat_logprobs
from server.openai_answer import OpenAIAnswer
from server.request.description import AnswerRequest
from server.request.generate import StartedAnswer


class ChatAnswer(OpenAIAnswer):
    kind = "chat.completion.chunk"
    text_begin = b'"delta":{"content":'
    text_end = b"}"

    def __init__(
        self,
        context: ServerContext,
        body: ChatCompletionRequest,
        asked: AnswerRequest,
        started: StartedAnswer,
        model: str,
    ) -> None:
        self._vocabulary = context.tokenizer.vocabulary
        self._num_top = asked.sampling.logprobs
        self._skip_special_tokens = asked.skip_special_tokens
        super().__init__(context, body, started, model, service_tier="default")
        self._reading = started.reading
        self._is_legacy = asked.tools is not None and asked.tools.is_legacy
        self._readers = [] if self._reading is None else [self._reading.reader() for _ in self.assemblers]
        self._writers = [DeltaWriter(is_legacy=self._is_legacy) for _ in self._readers]

    @property
    def shows_logprobs(self) -> bool:
        return self._num_top is not None

    def whole(self, choices: Sequence[CollectedChoice]) -> dict[str, Any]:
        answer: dict[str, Any] = {
            **self.header,
            "object": "chat.completion",
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "usage": self.usage(choice.finish for choice in choices),
        }
        if self.returns_token_ids:
            answer["prompt_token_ids"] = list(self.prompts[0].token_ids)
        return answer

    def place(self, prompt_index: int, message: PromptLogprobs) -> None:
        pass  # chat has no echo

    def prompt_logprobs(self, prompt_index: int, message: PromptLogprobs) -> bytes:
        return b""

    def start(self) -> bytes:
        chunks = []
        for index in range(len(self.assemblers)):
            is_first = self.returns_token_ids and index == 0
            extra = {"prompt_token_ids": list(self.prompts[0].token_ids)} if is_first else {}
            delta = {"role": "assistant", "content": "", "refusal": None}
            chunks.append(self.chunk(_choice(index, delta), **extra))
        return b"".join(chunks)

    def delta(self, choice: int, delta: ChoiceDelta) -> bytes:
        if not self._readers:
            return super().delta(choice, delta)
        self._num_generated += len(delta.token_ids)
        events = self._readers[choice].read(delta.text, delta.finish)
        bodies = self._writers[choice].deltas(events)
        chunks: list[bytes] = []
        if self.has_token_data(delta):
            # Log-probabilities and ids are the tokens', whatever the parser makes of their text.
            chunks.append(self._with_token_data(choice, delta, bodies.pop(0) if bodies else {}))
        for body in bodies:
            is_text = self.is_text_only and len(body) == 1 and "content" in body
            chunks.append(self.text_chunk(choice, body["content"]) if is_text else self.chunk(_choice(choice, body)))
        if events and isinstance(end := events[-1], End):
            chunks.append(self._finish(choice, end.finish, finish_reason(end, is_legacy=self._is_legacy)))
        return b"".join(chunks)

    def full_delta(self, choice: int, delta: ChoiceDelta) -> bytes:
        return self._with_token_data(choice, delta, {"content": delta.text})

    def finish(self, choice: int, finish: Finish) -> bytes:
        return self._finish(choice, finish, finish.reason)

    def _with_token_data(self, index: int, delta: ChoiceDelta, body: dict[str, Any]) -> bytes:
        choice = {**_choice(index, body), "logprobs": self._logprobs(delta.logprobs)}
        if self.returns_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return self.chunk(choice)

    def _finish(self, index: int, finish: Finish, reason: str) -> bytes:
        return self.chunk({**_choice(index, {}), "finish_reason": reason, "stop_reason": finish.stop_reason})

    def _logprobs(self, placed: Sequence[PlacedLogprob]) -> dict[str, Any] | None:
        if self._num_top is None:
            return None
        return chat_logprobs(
            self._vocabulary, placed, num_top=self._num_top, skip_special_tokens=self._skip_special_tokens
        )

    def _whole_choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        finish = choice.finish
        reason: str | None = None if finish is None else finish.reason
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if self._reading is not None:
            answer = collect(self._reading.reader().read(choice.text, finish))
            message = message_body(answer, is_legacy=self._is_legacy)
            reason = None if answer.end is None else finish_reason(answer.end, is_legacy=self._is_legacy)
        body: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": reason,
            "stop_reason": None if finish is None else finish.stop_reason,
        }
        if self.returns_token_ids:
            body["token_ids"] = choice.token_ids
        return body


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
