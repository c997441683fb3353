"""The ``regex`` constraint: a pattern that the whole answer matches."""

from __future__ import annotations

from constrained.json_schema.errors import SchemaError, UnenforceableError
from constrained.json_schema.prepared import LARK_HEADER, Limits, PreparedGrammar, PrepareOptions
from constrained.json_schema.reading.document import Document
from constrained.json_schema.solving.solver import Solver
from constrained.json_schema.writing.ebnf_writer import EbnfWriter
from constrained.patterns import charset, tree
from constrained.patterns.derivative import is_empty
from constrained.patterns.language import full_language
from constrained.patterns.parser import PatternSyntaxError, PatternUnsupportedError
from constrained.patterns.render import lark_terminal, rust_regex
from constrained.patterns.tree import Node
from constrained.spec import GrammarSpec

_DOT_EXCLUDES = charset.of("\n")
"""As in the engines' own dialects; ECMA-262 would also exclude carriage returns."""


def prepare_regex(spec: GrammarSpec, backend: str, options: PrepareOptions) -> PreparedGrammar:
    """See :func:`constrained.preparation.prepare.prepare`.

    The pattern is read once, in one dialect (ECMA-262's, ``.`` short of the newline only), and written out again
    without anchors, look-aheads and classes that engines read differently.
    """
    language = read_regex(spec.value, options.limits)
    if backend == "xgrammar":
        return PreparedGrammar(backend, "ebnf", ebnf_of(language, options.limits))
    if backend == "outlines":
        if tree.has_set_operators(language):
            raise UnenforceableError("the outlines grammar backend has no look-aheads")
        return PreparedGrammar(backend, "regex", rust_regex(language))
    return PreparedGrammar("llguidance", "lark", f"{LARK_HEADER}start: TEXT\nTEXT: {lark_terminal(language)}\n")


def read_regex(pattern: str, limits: Limits) -> Node:
    """Language of a pattern that is matched as a whole.

    Raises
    ------
    SchemaError
        Not a pattern, not a regular language, too large, or without any text that matches.
    """
    if len(pattern.encode("utf-8", "surrogatepass")) > 10 * limits.max_pattern_bytes:
        raise SchemaError(f"the pattern is longer than {10 * limits.max_pattern_bytes:,} bytes")
    try:
        language = full_language(pattern, _DOT_EXCLUDES, more_escapes=True)
    except PatternUnsupportedError as error:
        raise UnenforceableError(f"the pattern cannot be enforced: {error}") from None
    except PatternSyntaxError as error:
        raise SchemaError(f"the pattern is no regular expression: {error}") from None
    if tree.expanded_size(language) > limits.max_pattern_states:
        raise UnenforceableError(
            f"the pattern's counted repetitions multiply to more than {limits.max_pattern_states:,} characters"
        )
    if language == tree.NOTHING or is_empty(language):
        raise SchemaError("no text matches the pattern")
    if pattern.startswith("(?") and _takes_only_empty(language):
        raise SchemaError("the pattern matches the empty text alone: a look-ahead needs something behind it to match")
    return language


def ebnf_of(language: Node, limits: Limits) -> str:
    """A grammar of the texts of a language, for xgrammar.

    Its own regular expressions are another dialect: it reads ``\\x{28}`` as 28 letters x, and warns on standard error.
    """
    writer = EbnfWriter(Solver(Document("true", limits)), "compact")
    writer.define(writer.start, writer.token(language))
    return writer.finish()


def _takes_only_empty(language: Node) -> bool:
    something = tree.repeat(tree.ANY_CHAR, 1, None)
    return is_empty(tree.both([language, something])) is True
