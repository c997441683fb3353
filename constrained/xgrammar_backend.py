"""xgrammar: JSON Schema, regular expressions, EBNF and structural tags."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import xgrammar
from typing_extensions import Self

from constrained.base import BaseGrammarBackend, BaseGrammarObject, register_grammar_backend
from constrained.config import MAX_WHITESPACE_CHARACTERS
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError, InvalidGrammarError


class XGrammarObject(BaseGrammarObject):
    """A matcher over a compiled grammar. Stop tokens never reach the matcher: the base class keeps them."""

    def __init__(self, environment: GrammarEnvironment, compiled: xgrammar.CompiledGrammar) -> None:
        super().__init__(environment)
        self.compiled = compiled
        self.matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(environment.eos_token_ids))

    @property
    def size_bytes(self) -> int:
        return int(self.compiled.memory_size_bytes)

    def _accept(self, token_id: int) -> bool:
        return bool(self.matcher.accept_token(token_id))

    def _rollback(self, k: int) -> None:
        self.matcher.rollback(k)

    def _is_accepting(self) -> bool:
        return bool(self.matcher.is_completed())

    def _can_extend(self) -> bool:
        words = np.empty((1, self.environment.num_mask_words), dtype=np.int32)
        self.matcher.fill_next_token_bitmask(words, 0)
        return bool((words[0] & self._content_words).any())

    def _fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        self.matcher.fill_next_token_bitmask(words, row)

    def _forced_bytes(self) -> bytes:
        return self.matcher.find_jump_forward_string().encode()

    def _copy(self) -> Self:
        return type(self)(self.environment, self.compiled)


class XGrammarBackend(BaseGrammarBackend):
    name = "xgrammar"

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
        return xgrammar.GrammarCompiler(
            self.tokenizer_info, max_threads=self.environment.config.compile_threads, cache_enabled=False
        )

    def warm(self) -> None:
        _ = self.tokenizer_info

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
        return self._compile("schema", self.compiler.compile_json_schema, value, strict_mode=False, **options)

    def dispatch_regex(self, value: str) -> BaseGrammarObject:
        return self._compile("regular expression", self.compiler.compile_regex, value)

    def dispatch_ebnf(self, value: str) -> BaseGrammarObject:
        # xgrammar 0.2.9 takes the end of the root rule for the end of the text when it fills masks, and so leaves legal
        # tokens out where the root rule refers to itself: a rule above it has no such use.
        start = "start_of_text"
        while start in value:
            start += "_"
        return self._compile(
            "grammar", self.compiler.compile_grammar, f"{value}\n{start} ::= root\n", root_rule_name=start
        )

    def dispatch_structural_tag(self, value: str) -> BaseGrammarObject:
        return self._compile("structural tag", self.compiler.compile_structural_tag, value)

    def _compile(self, what: str, compile_function: Any, value: str, **options: Any) -> BaseGrammarObject:
        if "\0" in value:
            raise InvalidGrammarError(f"the {what} contains a NUL character")
        try:
            compiled = compile_function(value, **options)
        except (RuntimeError, ValueError, TypeError) as error:
            raise InvalidGrammarError(f"invalid {what}: {_reason(error)}") from error
        return XGrammarObject(self.environment, compiled)

    def serialize(self, compiled: BaseGrammarObject) -> bytes:
        if not isinstance(compiled, XGrammarObject):
            raise TypeError(f"not a grammar of this backend: {type(compiled).__name__}")
        return compiled.compiled.serialize_json().encode()

    def deserialize(self, payload: bytes) -> BaseGrammarObject:
        try:
            compiled = xgrammar.CompiledGrammar.deserialize_json(payload.decode(), self.tokenizer_info)
        except (RuntimeError, UnicodeDecodeError) as error:
            raise GrammarError(f"a compiled grammar cannot be read back: {_reason(error)}") from error
        return XGrammarObject(self.environment, compiled)


def _reason(error: Exception) -> str:
    """xgrammar's message without the position in its own source."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    message = " ".join(line.strip() for line in lines)
    _, marker, rest = message.partition(": ")
    if message.startswith("[") and marker:
        message = rest.partition(") is false: ")[2] or rest
    return message[:500]


register_grammar_backend(XGrammarBackend.name, XGrammarBackend)
