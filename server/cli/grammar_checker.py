"""Checks constraints as the server would serve them: the same compile workers, the same objects, token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch

from constrained.config import GrammarConfig
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, InvalidGrammarObject, create_grammar_backend
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError
from constrained.json_schema.writing.spelling import Speller
from constrained.preparation import PrepareOptions, SchemaError
from constrained.preparation.prepare import solver_of
from constrained.spec import GrammarSpec
from constrained.vocabulary import Vocabulary


@dataclass(frozen=True)
class Instance:
    """One answer to try: exact ``text``, or ``data`` to be spelled as the grammar spells it."""

    text: str | None = None
    data: Any = None


@dataclass(frozen=True)
class Report:
    """What became of one specification and its instances."""

    backend: str | None
    """``None`` when it was refused."""
    message: str | None
    pointer: str | None
    compile_ms: float
    size_bytes: int
    accepted: tuple[bool, ...]
    unenforced: tuple[str, ...]
    """JSON pointers that nothing enforces."""

    @property
    def compiled(self) -> bool:
        return self.backend is not None


class GrammarChecker:
    """One vocabulary, one pool of compile workers.

    Parameters
    ----------
    tokenizer_json
        A Hugging Face ``tokenizer.json``.
    eos_token_ids
        Ids that end an answer.
    config
        The server's options.
    """

    def __init__(self, tokenizer_json: Path, eos_token_ids: Sequence[int], config: GrammarConfig) -> None:
        vocabulary = Vocabulary.from_tokenizer_json(tokenizer_json)
        self._tokens = _TextTokenizer(tokenizer_json, vocabulary)
        self._config = config
        self._environment = GrammarEnvironment(vocabulary, len(vocabulary), tuple(eos_token_ids), config)
        backend = create_grammar_backend(self._environment)
        if backend is None:
            raise ValueError("the backend 'none' compiles nothing")
        self._backend: BaseGrammarBackend = backend
        self._stop_id = eos_token_ids[0]

    def submit(self, spec: GrammarSpec) -> Future[BaseGrammarObject]:
        """Start compiling; several compile at once."""
        found, _ = self._backend.get_cached_or_future_value(spec)
        if isinstance(found, Future):
            return found
        ready: Future[BaseGrammarObject] = Future()
        ready.set_result(found)
        return ready

    def report(self, spec: GrammarSpec, pending: Future[BaseGrammarObject], instances: Sequence[Instance]) -> Report:
        """Wait for a compile and try the instances."""
        grammar = pending.result()
        stats = grammar.grammar_stats
        milliseconds = stats.compile_seconds * 1000 if stats is not None else 0.0
        if isinstance(grammar, InvalidGrammarObject):
            error = grammar.error
            return Report(None, error.message, error.pointer or "", milliseconds, 0, (False,) * len(instances), ())
        texts = self._spell(spec, instances)
        accepted = tuple(text is not None and self.accepts(grammar, text) for text in texts)
        backend = (stats.backend if stats is not None else None) or "unknown"
        unenforced = stats.unenforced if stats is not None else ()
        return Report(backend, None, None, milliseconds, grammar.size_bytes, accepted, unenforced)

    def accepts(self, grammar: BaseGrammarObject, text: str) -> bool:
        """Whether every token of ``text`` is legal in its turn, and a stop token at the end."""
        try:
            token_ids = self._tokens.encode(text)
        except UnicodeEncodeError:
            return False  # half a surrogate pair: no tokens spell it
        state = grammar.copy()
        mask = state.allocate_vocab_mask(self._environment.vocab_size, 1)
        try:
            for token_id in token_ids:
                state.fill_vocab_mask(mask, 0)
                if not _is_set(mask, token_id):
                    return False
                state.accept_token(token_id)
            state.fill_vocab_mask(mask, 0)
        except GrammarError:
            return False
        return _is_set(mask, self._stop_id)

    def close(self) -> None:
        """End the compile workers."""
        self._backend.shutdown()

    def _spell(self, spec: GrammarSpec, instances: Sequence[Instance]) -> list[str | None]:
        if spec.kind != "json_schema" or all(one.text is not None for one in instances):
            return [one.text if one.text is not None else _plain(one.data) for one in instances]
        try:
            options = PrepareOptions(
                whitespace=self._config.json_whitespace,
                undeclared_properties=self._config.json_undeclared_properties,
            )
            solver, goal = solver_of(spec, options)
            speller = Speller(solver, self._config.json_number_digits or None)
            return [one.text if one.text is not None else speller.spell(goal, one.data) for one in instances]
        except (SchemaError, RecursionError):
            # A schema that only another engine takes: keys stay in the instance's own order.
            return [one.text if one.text is not None else _plain(one.data) for one in instances]


class _TextTokenizer:
    """Text to the ids whose bytes are the text."""

    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self._tokenizer.encode_special_tokens = True  # the text of a special token is text here
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._ids = {data: i for i, data in enumerate(vocabulary.token_bytes) if i not in vocabulary.special_ids}
        self._longest = max(map(len, self._ids))

    def encode(self, text: str) -> list[int]:
        data = text.encode()
        token_ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        visible = self._vocabulary.visible_bytes
        if b"".join(visible[i] for i in token_ids) == data:
            return token_ids
        return self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        """For tokenizers that normalise, or put a space in front: the longest token at each place."""
        token_ids: list[int] = []
        position = 0
        while position < len(data):
            for length in range(min(self._longest, len(data) - position), 0, -1):
                token_id = self._ids.get(data[position : position + length])
                if token_id is not None:
                    token_ids.append(token_id)
                    position += length
                    break
            else:
                raise UnicodeEncodeError("vocabulary", "", position, position + 1, "no token spells this byte")
        return token_ids


def _is_set(mask: torch.Tensor, token_id: int) -> bool:
    return bool(int(mask[0, token_id >> 5]) >> (token_id & 31) & 1)


def _plain(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=float)
