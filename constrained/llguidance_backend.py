"""llguidance: JSON Schema, regular expressions, and grammars in Lark or GBNF."""

from __future__ import annotations

import json
import re
from functools import cached_property
from importlib.metadata import version

import llguidance
import numpy as np
import numpy.typing as npt
from llguidance.gbnf_to_lark import any_to_lark
from typing_extensions import Self

from constrained.base import BaseGrammarBackend, BaseGrammarObject, refuse, register_grammar_backend
from constrained.config import MAX_WHITESPACE_CHARACTERS, JsonWhitespace
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError, InvalidGrammarError

# Forcing would narrow a mask to the one token that llguidance's tokenizer callback likes best wherever the text is
# forced; every legal spelling stays legal here, and the drafter proposes the canonical one.
_OPTIONS = '%llguidance {"no_forcing": true}\n'

_JSON_WHITESPACE: dict[JsonWhitespace, dict[str, object]] = {
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "bounded": {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{0,{MAX_WHITESPACE_CHARACTERS}}}"},
    "any": {"whitespace_flexible": True},
}

_POSITION = re.compile(r"\b(?:at )?(\d+)\((\d+)\): ")
_EXCERPT = re.compile(r"\s*(?:\d+ \||\^)")


def parser_limits() -> llguidance.LLParserLimits:
    """Limits of building and of every step. They bound how long one mask may take, whatever the grammar."""
    return llguidance.LLParserLimits(
        max_items_in_row=2000,
        initial_lexer_fuel=5_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=250_000,
        max_grammar_size=500_000,
        precompute_large_lexemes=True,
        verbose_errors=False,
    )


class LLGuidanceObject(BaseGrammarObject):
    """A matcher and the pristine one it was copied from."""

    def __init__(self, environment: GrammarEnvironment, start: llguidance.LLMatcher, grammar: str) -> None:
        super().__init__(environment)
        self.start = start
        self.grammar = grammar
        self.matcher = start.deep_copy()

    @property
    def size_bytes(self) -> int:
        # The library tells no size; lexer states grow with use. Measured: some tens of KiB and up for real schemas.
        return 64 * 1024 + 16 * len(self.grammar)

    def _accept(self, token_id: int) -> bool:
        accepted = self.matcher.try_consume_tokens([token_id]) == 1
        self._check()
        return accepted

    def _rollback(self, k: int) -> None:
        if not self.matcher.rollback(k):
            self._check()

    def _is_accepting(self) -> bool:
        return self.matcher.is_accepting()

    def _can_extend(self) -> bool:
        return not self.matcher.is_stopped()

    def _fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        target = words[row]
        self.matcher.unsafe_compute_mask_ptr(target.ctypes.data, target.nbytes)
        self._check()

    def _forced_bytes(self) -> bytes:
        return self.matcher.compute_ff_bytes()

    def _copy(self) -> Self:
        return type(self)(self.environment, self.start, self.grammar)

    def _check(self) -> None:
        if self.matcher.is_error():
            raise GrammarError(f"the grammar became too complex: {_reason(self.matcher.get_error())}")


class LLGuidanceBackend(BaseGrammarBackend):
    name = "llguidance"

    @cached_property
    def tokenizer(self) -> llguidance.LLTokenizer:
        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_ByteTokenizer(self.environment)),
            n_vocab=self.environment.vocab_size,
            eos_token=list(self.environment.eos_token_ids),
            slices=llguidance.LLTokenizer.json_slices(),
        )

    def warm(self) -> None:
        _ = self.tokenizer

    @property
    def version(self) -> str:
        return f"llguidance-{version('llguidance')}"

    def dispatch_json(self, value: str) -> BaseGrammarObject:
        try:
            schema = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidGrammarError(f"the schema is not valid JSON: {error}") from error
        if not isinstance(schema, (dict, bool)):
            raise InvalidGrammarError("a schema is a JSON object or a boolean")
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        schema = {**schema, "x-guidance": _JSON_WHITESPACE[self.environment.config.json_whitespace]}
        return self._compile("schema", f"{_OPTIONS}start: %json {json.dumps(schema)}\n")

    def dispatch_regex(self, value: str) -> BaseGrammarObject:
        return self._compile("regular expression", f"{_OPTIONS}start: /{llguidance.regex_to_lark(value)}/\n")

    def dispatch_ebnf(self, value: str) -> BaseGrammarObject:
        """Lark as it is, GBNF translated; the first rule decides which it is."""
        try:
            lark = any_to_lark(value)
        except Exception as error:  # the translator raises bare exceptions of several kinds
            raise InvalidGrammarError(f"invalid grammar: {_reason(str(error))}") from error
        return self.dispatch_lark(lark.replace("%llguidance {}", "", 1))

    def dispatch_lark(self, value: str) -> BaseGrammarObject:
        """A grammar in llguidance's dialect of Lark."""
        lark = value.removeprefix(_OPTIONS)
        if "%llguidance" in lark:
            raise InvalidGrammarError("invalid grammar: %llguidance options are set by the server")
        return self._compile("grammar", _OPTIONS + lark)

    def dispatch_structural_tag(self, value: str) -> BaseGrammarObject:
        raise refuse(self.name, "structural tags")

    def serialize(self, compiled: BaseGrammarObject) -> bytes:
        if not isinstance(compiled, LLGuidanceObject):
            raise TypeError(f"not a grammar of this backend: {type(compiled).__name__}")
        return compiled.grammar.encode()

    def deserialize(self, payload: bytes) -> BaseGrammarObject:
        return self._compile("grammar", payload.decode())

    def _compile(self, what: str, lark: str) -> BaseGrammarObject:
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        matcher = llguidance.LLMatcher(self.tokenizer, grammar, log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise InvalidGrammarError(f"invalid {what}: {_compile_reason(matcher.get_error())}")
        return LLGuidanceObject(self.environment, matcher, lark)


class _ByteTokenizer:
    """What ``llguidance.TokenizerWrapper`` asks for. Encoding is never used: forcing is off."""

    def __init__(self, environment: GrammarEnvironment) -> None:
        self.eos_token_id = environment.eos_token_ids[0]
        self.bos_token_id = None
        self.tokens = list(environment.matchable_bytes)
        self.special_token_ids = sorted(environment.unmatchable_ids)

    def __call__(self, text: bytes) -> list[int]:
        return []


def _compile_reason(error: str) -> str:
    """llguidance's message without its excerpt, and with the client's own line: one of ours stands above it."""
    lines = [line for line in error.splitlines() if not _EXCERPT.match(line)]
    text = _POSITION.sub(lambda m: f"line {max(1, int(m[1]) - 1)}, column {m[2]}: ", "\n".join(lines), count=1)
    return _reason(text)


def _reason(error: str) -> str:
    """llguidance's message without its dump of the parser's state."""
    message = error.partition("<state>")[0].strip() or "no reason given"
    return " ".join(message.split())[:500]


register_grammar_backend(LLGuidanceBackend.name, LLGuidanceBackend)
