"""Answers of a text completions request: the whole object, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.messages import Finish, PromptLogprobs
from server.completions.echo import Echo
from server.completions.protocol import CompletionRequest
from server.context import ServerContext
from server.generation.choices import ChoiceDelta, CollectedChoice, PlacedLogprob
from server.generation.logprobs import completion_logprobs
from server.openai_answer import OpenAIAnswer
from server.request.generate import StartedAnswer


class CompletionAnswer(OpenAIAnswer):
    kind = "text_completion"
    text_begin = b'"text":'
    text_end = b""

    def __init__(self, context: ServerContext, body: CompletionRequest, started: StartedAnswer, model: str) -> None:
        self._vocabulary = context.tokenizer.vocabulary
        self._n = body.n
        self._shows_echo = body.echo
        self._shows_logprobs = body.logprobs is not None
        super().__init__(context, body, started, model)
        self._echoes = [Echo(prompt, context.tokenizer) for prompt in self.prompts]

    @property
    def shows_logprobs(self) -> bool:
        return self._shows_logprobs

    def whole(self, choices: Sequence[CollectedChoice]) -> dict[str, Any]:
        """Of all choices, prompt by prompt: with ``best_of`` the best ``n`` are shown, and all are counted."""
        per_prompt = len(choices) // len(self.prompts)
        shown: list[dict[str, Any]] = []
        for prompt_index in range(len(self.prompts)):
            group = choices[prompt_index * per_prompt : (prompt_index + 1) * per_prompt]
            if per_prompt > self._n:
                group = sorted(group, key=CollectedChoice.mean_logprob, reverse=True)[: self._n]
            for choice in group:
                shown.append(self._whole_choice(len(shown), choice, prompt_index))
        return {**self.header, "choices": shown, "usage": self.usage(choice.finish for choice in choices)}

    def place(self, prompt_index: int, message: PromptLogprobs) -> None:
        self._echoes[prompt_index].place(message)

    def start(self) -> bytes:
        chunks = []
        for index in range(len(self.assemblers)):
            prompt_index = index // self._n
            text = self._echoes[prompt_index].text if self._shows_echo and not self._shows_logprobs else ""
            extra: dict[str, Any] = {}
            if self.returns_token_ids:
                extra = {"prompt_token_ids": self.prompts[prompt_index].token_ids, "token_ids": []}
            if text or extra:
                chunks.append(self._choice_chunk(index, text, (), **extra))
        return b"".join(chunks)

    def prompt_logprobs(self, prompt_index: int, message: PromptLogprobs) -> bytes:
        self.place(prompt_index, message)
        if not self._shows_logprobs:
            return b""  # asked for only to score a prompt without generating
        echo, first = self._echoes[prompt_index], prompt_index * self._n
        return b"".join(self._choice_chunk(index, echo.text, echo.entries) for index in range(first, first + self._n))

    def full_delta(self, choice: int, delta: ChoiceDelta) -> bytes:
        extra = {"token_ids": list(delta.token_ids)} if self.returns_token_ids else {}
        return self._choice_chunk(choice, delta.text, delta.logprobs, **extra)

    def finish(self, choice: int, finish: Finish) -> bytes:
        return self._choice_chunk(choice, "", (), finish_reason=finish.reason, stop_reason=finish.stop_reason)

    def _choice_chunk(
        self, index: int, text: str, logprobs: Sequence[PlacedLogprob | tuple[int, int]], **extra: Any
    ) -> bytes:
        shown = self._logprobs(logprobs) if logprobs else None
        return self.chunk({"index": index, "text": text, "logprobs": shown, "finish_reason": None, **extra})

    def _logprobs(self, entries: Sequence[PlacedLogprob | tuple[int, int]]) -> dict[str, list[Any]] | None:
        return completion_logprobs(self._vocabulary, entries) if self._shows_logprobs else None

    def _whole_choice(self, index: int, choice: CollectedChoice, prompt_index: int) -> dict[str, Any]:
        finish, echo = choice.finish, self._echoes[prompt_index]
        body: dict[str, Any] = {
            "index": index,
            "text": (echo.text if self._shows_echo else "") + choice.text,
            "logprobs": self._logprobs([*echo.entries, *choice.logprobs]),
            "finish_reason": None if finish is None else finish.reason,
            "stop_reason": None if finish is None else finish.stop_reason,
        }
        if self.returns_token_ids:
            body["prompt_token_ids"] = self.prompts[prompt_index].token_ids
            body["token_ids"] = choice.token_ids
        return body
