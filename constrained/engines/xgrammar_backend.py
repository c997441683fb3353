"""xgrammar: JSON Schema, regular expressions, EBNF and structural tags."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import xgrammar
from typing_extensions import Self

from constrained.config import MAX_WHITESPACE_CHARACTERS
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, register_grammar_backend
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError, InvalidGrammarError
from constrained.preparation import prepare
from constrained.preparation.native import xgrammar_reason
from constrained.spec import GrammarSpec

_QUICK_SECONDS = 0.02
"""CPU seconds of a compile below which its text crosses between processes, not its result. In 0.2.9 a schema of six
properties compiles in 8 ms, without the interpreter lock; its 3 MB of JSON take 50 ms to write, 25 ms to read."""


_COMMON_LENGTH = 64
"""Longest ``maxLength`` that costs no new rules."""
_RULE_CACHE_BYTES = 64 << 20
_COMPILES_PER_CACHE = 500
"""Compiles after which the cache of rules begins anew: 0.2.9 does not count all that it keeps, about 40 KiB each."""


class _Source(msgspec.Struct, frozen=True):
    kind: Literal["schema", "regular expression", "grammar", "structural tag"]
    text: str


_TEXT, _RESULT, _NAMING_RESULT = b"t", b"r", b"n"
_NAMED_TOKEN = '"type": "token"'
"""In the JSON that :mod:`constrained.preparation` writes; inside a string its quotes would be escaped."""
_decode_source = msgspec.msgpack.Decoder(_Source).decode


class XGrammarObject(BaseGrammarObject):
    """A matcher over a compiled grammar. Stop tokens never reach the matcher: the base class keeps them.

    Parameters
    ----------
    environment, compiled
        What it was compiled for, and the result.
    source
        Where compiling again takes less time than reading the result back: what to compile.
    """

    def __init__(
        self, environment: GrammarEnvironment, compiled: xgrammar.CompiledGrammar, source: _Source | None = None
    ) -> None:
        super().__init__(environment)
        self.compiled = compiled
        self.source = source
        self.matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(environment.eos_token_ids))
        self._token_ids: list[int] = []
        """Accepted so far, to know whether the text ends inside a character."""

    @property
    def size_bytes(self) -> int:
        return int(self.compiled.memory_size_bytes)

    def _accept(self, token_id: int) -> bool:
        accepted = bool(self.matcher.accept_token(token_id))
        if accepted:
            self._token_ids.append(token_id)
        return accepted

    def _rollback(self, k: int) -> None:
        self.matcher.rollback(k)
        del self._token_ids[-k:]

    def _is_accepting(self) -> bool:
        return bool(self.matcher.is_completed())

    def _can_extend(self) -> bool:
        words = np.empty((1, self.environment.num_mask_words), dtype=np.int32)
        self.matcher.fill_next_token_bitmask(words, 0)
        return bool((words[0] & self._content_words).any())

    def _fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        self.matcher.fill_next_token_bitmask(words, row)

    def _forced_bytes(self) -> bytes:
        num_missing = self._num_missing_bytes()
        rest = self._accept_rest_of_character(num_missing)
        try:
            forced = "" if len(rest) < num_missing else self.matcher.find_jump_forward_string()
        finally:
            if rest:
                self.matcher.rollback(len(rest))
        return rest + forced.encode()

    def _num_missing_bytes(self) -> int:
        """How many bytes the last character lacks. There xgrammar 0.2.9, which forces whole characters, forces none."""
        tail = b"".join(self.environment.matchable_bytes[i] for i in self._token_ids[-3:])[-3:]
        for length, byte in enumerate(reversed(tail), start=1):
            if byte < 0x80 or byte >= 0xF8:
                return 0
            if byte >= 0xC0:
                return max(0, (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) - length)
        return 0

    def _accept_rest_of_character(self, num_missing: int) -> bytes:
        """Accept those of the missing bytes that have no alternative."""
        rest = b""
        ids = self.environment.continuation_byte_ids
        words = np.empty((1, self.environment.num_mask_words), dtype=np.int32)
        while len(rest) < num_missing:
            self.matcher.fill_next_token_bitmask(words, 0)
            legal = [index for index, i in enumerate(ids) if int(words[0, i // 32]) >> (i % 32) & 1]
            if len(legal) != 1:
                break
            self.matcher.accept_token(ids[legal[0]])
            rest += bytes([0x80 + legal[0]])
        return rest

    def _copy(self) -> Self:
        return type(self)(self.environment, self.compiled, self.source)


class XGrammarBackend(BaseGrammarBackend):
    name = "xgrammar"

    def __init__(self, environment: GrammarEnvironment) -> None:
        super().__init__(environment)
        self._compiles = itertools.count(1)

    @cached_property
    def tokenizer_info(self) -> xgrammar.TokenizerInfo:
        # Empty tokens are what xgrammar calls special. No stop token is declared: an id that a matcher's own stop set
        # leaves out would otherwise count as text of no bytes, legal everywhere (seen in 0.2.9).
        return xgrammar.TokenizerInfo(
            list(self.environment.matchable_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=self.environment.vocab_size,
            stop_token_ids=[],
        )

    @cached_property
    def compiler(self) -> xgrammar.GrammarCompiler:
        """Keeps the masks of rules, which grammars that have such a rule too then need not compile."""
        return xgrammar.GrammarCompiler(
            self.tokenizer_info,
            max_threads=self.environment.config.compile_threads,
            cache_enabled=True,
            cache_limit_bytes=_RULE_CACHE_BYTES,
        )

    def warm(self) -> None:
        _ = self.tokenizer_info

    def compile_common_rules(self) -> None:
        # A string with a bound has a rule for each number of characters left, 7 ms each over 49,152 tokens; shorter
        # strings have the same rules.
        schema = json.dumps({"type": "string", "maxLength": _COMMON_LENGTH})
        self.dispatch_ebnf(prepare(GrammarSpec(kind="json_schema", value=schema, backend=self.name)).text)

    @property
    def version(self) -> str:
        return f"xgrammar-{version('xgrammar')}-{xgrammar.get_serialization_version()}"

    def dispatch_json(self, value: str) -> BaseGrammarObject:
        whitespace = self.environment.config.json_whitespace
        if whitespace == "compact":
            options: dict[str, Any] = {"any_whitespace": False, "separators": (",", ":")}
        else:
            options = {"any_whitespace": True}
            if whitespace == "bounded":
                options["max_whitespace_cnt"] = MAX_WHITESPACE_CHARACTERS
        # What undeclared keys may do is decided by the prepared schema alone, hence strict_mode off.
        compile_schema = partial(self.compiler.compile_json_schema, strict_mode=False, **options)
        return self._compile(_Source("schema", value), compile_schema)

    def dispatch_regex(self, value: str) -> BaseGrammarObject:
        return self._compile(_Source("regular expression", value), self.compiler.compile_regex)

    def dispatch_ebnf(self, value: str) -> BaseGrammarObject:
        # xgrammar 0.2.9 takes the end of the root rule for the end of the text when it fills masks, and so leaves legal
        # tokens out where the root rule refers to itself: a rule above it has no such use.
        start = "start_of_text"
        while start in value:
            start += "_"
        compile_grammar = partial(self.compiler.compile_grammar, root_rule_name=start)
        return self._compile(_Source("grammar", value), lambda text: compile_grammar(f"{text}\n{start} ::= root\n"))

    @cached_property
    def _naming(self) -> XGrammarBackend:
        """Compiles for grammars that name special tokens."""
        return XGrammarBackend(self.environment.naming_special_tokens)

    def dispatch_structural_tag(self, value: str) -> BaseGrammarObject:
        if _NAMED_TOKEN in value and not self.environment.may_name_special_tokens:
            return self._naming.dispatch_structural_tag(value)
        return self._compile(_Source("structural tag", value), self.compiler.compile_structural_tag)

    def _compile(self, source: _Source, compile_function: Callable[[str], Any]) -> BaseGrammarObject:
        if "\0" in source.text:
            raise InvalidGrammarError(f"the {source.kind} contains a NUL character")
        started = time.thread_time()
        try:
            compiled = compile_function(source.text)
        except (RuntimeError, ValueError, TypeError) as error:
            raise InvalidGrammarError(f"invalid {source.kind}: {xgrammar_reason(error)}") from error
        if next(self._compiles) % _COMPILES_PER_CACHE == 0:
            self.compiler.clear_cache()
        is_quick = self.environment.config.compile_threads == 1 and time.thread_time() - started < _QUICK_SECONDS
        return XGrammarObject(self.environment, compiled, source if is_quick else None)

    def serialize(self, compiled: BaseGrammarObject) -> bytes:
        if not isinstance(compiled, XGrammarObject):
            raise TypeError(f"not a grammar of this backend: {type(compiled).__name__}")
        if compiled.source is not None:
            return _TEXT + msgspec.msgpack.encode(compiled.source)
        kind = _NAMING_RESULT if compiled.environment.may_name_special_tokens else _RESULT
        return kind + compiled.compiled.serialize_json().encode()

    def deserialize(self, payload: bytes) -> BaseGrammarObject:
        kind, payload = payload[:1], payload[1:]
        if kind == _TEXT:
            return self._compile_again(payload)
        if kind == _NAMING_RESULT and not self.environment.may_name_special_tokens:
            return self._naming.deserialize(_NAMING_RESULT + payload)
        try:
            compiled = xgrammar.CompiledGrammar.deserialize_json(payload.decode(), self.tokenizer_info)
        except (RuntimeError, UnicodeDecodeError) as error:
            raise GrammarError(f"a compiled grammar cannot be read back: {xgrammar_reason(error)}") from error
        return XGrammarObject(self.environment, compiled)

    def _compile_again(self, payload: bytes) -> BaseGrammarObject:
        try:
            source = _decode_source(payload)
        except msgspec.DecodeError as error:
            raise GrammarError(f"a compiled grammar cannot be read back: {error}") from error
        match source.kind:
            case "schema":
                return self.dispatch_json(source.text)
            case "regular expression":
                return self.dispatch_regex(source.text)
            case "grammar":
                return self.dispatch_ebnf(source.text)
            case "structural tag":
                return self.dispatch_structural_tag(source.text)


register_grammar_backend(XGrammarBackend.name, XGrammarBackend)
