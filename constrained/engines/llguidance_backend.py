"""llguidance: JSON Schema, regular expressions, and grammars in Lark or EBNF."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from importlib.metadata import version

import llguidance
import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from constrained.config import MAX_WHITESPACE_CHARACTERS, JsonWhitespace
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, register_grammar_backend
from constrained.engines.llguidance_matcher import MatcherStart, SharingMatcher, parser_limits, reason
from constrained.environment import GrammarEnvironment
from constrained.errors import InvalidGrammarError, UnsupportedGrammarError
from constrained.preparation import SchemaError, UnenforceableError
from constrained.preparation.ebnf_lark import lark_of_ebnf

# Forcing would narrow a mask to the one token that llguidance's tokenizer callback likes best wherever the text is
# forced; every legal spelling stays legal here, and the drafter proposes the canonical one.
_SLICE_CHARACTERS = (1, 2, 3, 4, 6, 8, 10, 16, 30)
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(rf'[^"\\\x00-\x1F\x7F]{{1,{most}}}' for most in _SLICE_CHARACTERS),
    r'[^"\\\x00-\x1F\x7F]+',
]
"""Sets of tokens that are legal or not as one, while what is left of a string takes all of them. The library's own sets
end at 10 and 30 characters and all, so that near the end of a string with ``maxLength`` every token is looked at."""
_OPTIONS = '%llguidance {"no_forcing": true}\n'

_JSON_WHITESPACE: dict[JsonWhitespace, dict[str, object]] = {
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "bounded": {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{0,{MAX_WHITESPACE_CHARACTERS}}}"},
    "any": {"whitespace_flexible": True},
}

_SPECIAL_MARKER = b"\xff"
"""Begins the library's spelling of a special token."""
_GRAMMAR, _NAMING_GRAMMAR = b"g", b"n"
_NAMED_TOKEN = "<["
"""In the grammars that :mod:`constrained.preparation` writes; inside a pattern its bracket would be escaped."""

# A token on a line of its own, as this package writes them.
_TOKEN_WITH_SET_OPERATORS = re.compile(r"(?m)^(?P<name>[A-Z]\w*): (?P<body>\(.* & .*\))$")
_HIGHEST_COUNT = re.compile(r"(?<!\\x)\{(?:\d+,)?(\d+)\}")
_MANY_REPETITIONS = 100
"""Above the bound of undeclared keys, which is 64 in most of them."""
_MAX_TRIED_TOKENS = 16

_POSITION = re.compile(r"\b(?:at )?(\d+)\((\d+)\): ")
_EXCERPT = re.compile(r"\s*(?:\d+ \||\^)")


class LLGuidanceObject(BaseGrammarObject):
    """A matcher and the start it was copied from."""

    def __init__(self, environment: GrammarEnvironment, start: MatcherStart, grammar: str) -> None:
        super().__init__(environment)
        self.start = start
        self.grammar = grammar
        self._sharing = SharingMatcher(start)

    @property
    def size_bytes(self) -> int:
        # The library tells no size, so this is what processes grew by: 65 to 325 KiB for one property to fifty, each
        # used for one answer, 257 KiB with a date-time. Lexer states grow with use.
        return 64 * 1024 + 40 * len(self.grammar)

    @property
    def is_spent(self) -> bool:
        return self.start.is_spent

    @property
    def matcher(self) -> llguidance.LLMatcher:
        """For the library's batch call; :meth:`refill` follows it."""
        return self._sharing.matcher

    def refill(self, words: npt.NDArray[np.int32], row: int) -> None:
        """Fill a row again where the batch call, which raises nothing, failed."""
        if self.matcher.is_error():
            self._fill(words, row)

    def _accept(self, token_id: int) -> bool:
        return self._sharing.accept(token_id)

    def _rollback(self, k: int) -> None:
        self._sharing.rollback(k)

    def _is_accepting(self) -> bool:
        return self._sharing.is_accepting()

    def _can_extend(self) -> bool:
        return not self._sharing.is_stopped()

    def _fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        target = words[row]
        self._sharing.fill(target.ctypes.data, target.nbytes)

    def _forced_bytes(self) -> bytes:
        return self._sharing.forced_bytes().partition(_SPECIAL_MARKER)[0]

    def _copy(self) -> Self:
        return type(self)(self.environment, self.start, self.grammar)


class LLGuidanceBackend(BaseGrammarBackend):
    name = "llguidance"
    counts_work = True

    @cached_property
    def tokenizer(self) -> llguidance.LLTokenizer:
        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_ByteTokenizer(self.environment)),
            n_vocab=self.environment.vocab_size,
            eos_token=list(self.environment.eos_token_ids),
            slices=_SLICES,
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
        try:
            lark = lark_of_ebnf(value)
        except UnenforceableError as error:
            raise UnsupportedGrammarError(error.message) from error
        except SchemaError as error:
            raise InvalidGrammarError(error.message) from error
        return self.dispatch_lark(lark)

    def dispatch_lark(self, value: str) -> BaseGrammarObject:
        """A grammar in llguidance's dialect of Lark."""
        lark = value.removeprefix(_OPTIONS)
        if "%llguidance" in lark:
            raise InvalidGrammarError("invalid grammar: %llguidance options are set by the server")
        return self._compile("grammar", _OPTIONS + lark)

    @cached_property
    def _naming(self) -> LLGuidanceBackend:
        """Compiles for grammars that name special tokens."""
        return LLGuidanceBackend(self.environment.naming_special_tokens)

    def dispatch_structural_tag(self, value: str) -> BaseGrammarObject:
        """A Lark grammar that :mod:`constrained.structural_tags` wrote."""
        if _NAMED_TOKEN in value and not self.environment.may_name_special_tokens:
            return self._naming.dispatch_structural_tag(value)
        return self.dispatch_lark(value)

    def parts_to_try(self, compiled: BaseGrammarObject) -> Iterator[BaseGrammarObject]:
        """Tokens whose lexer may need much: intersections and complements of long counted repetitions."""
        if not isinstance(compiled, LLGuidanceObject):
            raise TypeError(f"not a grammar of this backend: {type(compiled).__name__}")
        heavy = [
            match
            for match in _TOKEN_WITH_SET_OPERATORS.finditer(compiled.grammar)
            if sum(map(int, _HIGHEST_COUNT.findall(match["body"]))) > _MANY_REPETITIONS
        ]
        for match in heavy[:_MAX_TRIED_TOKENS]:
            try:
                yield self._compile("token", f"{_OPTIONS}start: {match['name']}\n{match.group()}\n")
            except InvalidGrammarError:
                continue  # it names tokens beside it, in a client's own grammar, and is tried as a part of that alone

    def serialize(self, compiled: BaseGrammarObject) -> bytes:
        if not isinstance(compiled, LLGuidanceObject):
            raise TypeError(f"not a grammar of this backend: {type(compiled).__name__}")
        kind = _NAMING_GRAMMAR if compiled.environment.may_name_special_tokens else _GRAMMAR
        return kind + compiled.grammar.encode()

    def deserialize(self, payload: bytes) -> BaseGrammarObject:
        kind, payload = payload[:1], payload[1:]
        if kind == _NAMING_GRAMMAR and not self.environment.may_name_special_tokens:
            return self._naming.deserialize(kind + payload)
        return self._compile("grammar", payload.decode(), is_serving=True)

    def _compile(self, what: str, lark: str, *, is_serving: bool = False) -> BaseGrammarObject:
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        limits = parser_limits(is_serving=is_serving)

        def build() -> llguidance.LLMatcher:
            return llguidance.LLMatcher(self.tokenizer, grammar, log_level=0, limits=limits)

        start = MatcherStart(build)
        if start.matcher.is_error():
            raise InvalidGrammarError(f"invalid {what}: {_compile_reason(start.matcher.get_error())}")
        return LLGuidanceObject(self.environment, start, lark)


class _ByteTokenizer:
    """What ``llguidance.TokenizerWrapper`` asks for. Encoding is never used: forcing is off."""

    def __init__(self, environment: GrammarEnvironment) -> None:
        self.eos_token_id = environment.eos_token_ids[0]
        self.bos_token_id = None
        self.tokens = list(environment.matchable_bytes)
        if environment.may_name_special_tokens:
            # So it spells a token that a grammar names by id. Where the token is forced, it would match no other text.
            for token_id in environment.vocabulary.special_ids - environment.unmatchable_ids:
                self.tokens[token_id] = _SPECIAL_MARKER + f"[{token_id}]".encode()
        self.special_token_ids = sorted(environment.unmatchable_ids)

    def __call__(self, text: bytes) -> list[int]:
        return []


def _compile_reason(error: str) -> str:
    """llguidance's message without its excerpt, and with the client's own line: one of ours stands above it."""
    lines = [line for line in error.splitlines() if not _EXCERPT.match(line)]
    text = _POSITION.sub(lambda m: f"line {max(1, int(m[1]) - 1)}, column {m[2]}: ", "\n".join(lines), count=1)
    return reason(text)


register_grammar_backend(LLGuidanceBackend.name, LLGuidanceBackend)
