"""The ``ebnf`` constraint: xgrammar's EBNF (which reads GBNF) or Lark in llguidance's dialect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from constrained.json_schema.errors import SchemaError
from constrained.json_schema.prepared import PreparedGrammar, PrepareOptions
from constrained.spec import GrammarSpec

_MAX_NESTING = 200
_MAX_REPETITION = 1_000_000
_LARK = re.compile(r"(?m)^\s*(?:%llguidance\b|start\s*:(?!:))")
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<chars>\[(?:[^\]\\\n]|\\.)*\])
    |(?P<define>::=)
    |(?P<name>[A-Za-z_][A-Za-z0-9_.\-]*)
    |(?P<count>\{\s*(?P<low>\d*)\s*(?P<comma>,?)\s*(?P<high>\d*)\s*\})
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def prepare_ebnf(spec: GrammarSpec, backend: str, options: PrepareOptions) -> PreparedGrammar:
    """See :func:`constrained.preparation.prepare.prepare`.

    llguidance takes Lark. EBNF, GBNF with it, is xgrammar's, and llguidance's where it is asked for.
    """
    if not spec.value.strip():
        raise SchemaError("the grammar is empty")
    if is_lark(spec.value):
        _check_nesting(_lark_brackets(spec.value), spec.value)
        return PreparedGrammar("llguidance", "lark", spec.value)
    text = check_ebnf(spec.value)
    return PreparedGrammar("llguidance" if backend == "llguidance" else "xgrammar", "ebnf", text)


def is_lark(text: str) -> bool:
    """Whether a grammar is written in llguidance's dialect of Lark."""
    return _LARK.search(text) is not None


def check_ebnf(text: str) -> str:
    """Check the brackets and names of a grammar; empty alternatives are written out, as xgrammar wants them.

    Raises
    ------
    SchemaError
        Unbalanced or too deeply nested parentheses, an unclosed string or class, an undefined rule; with the line.
    """
    tokens = [(m.lastgroup if m.lastgroup != "count" else "count", m) for m in _TOKEN.finditer(text)]
    defined: set[str] = set()
    used: dict[str, int] = {}
    brackets: list[tuple[str, int]] = []
    previous = ""
    written: list[str] = []
    visible = [(kind, m) for kind, m in tokens if kind != "space"]
    following = {id(m): visible[i + 1] for i, (_, m) in enumerate(visible[:-1])}
    largest = 1
    for kind, match in tokens:
        token = match.group()
        if kind == "space":
            written.append(token)
            continue
        after = following.get(id(match))
        if kind == "other" and token in '"[':
            what = "string" if token == '"' else "character class"
            raise SchemaError(f"the {what} opened in {_place(text, match.start())} is not closed")
        if kind == "name":
            if after is not None and after[0] == "define":
                defined.add(token)
                if previous == "|":
                    written.append('"" ')
                previous = "name of a rule"
                written.append(token)
                continue
            used.setdefault(token, match.start())
        if kind == "count":
            largest = max(largest, int(match["high"] or match["low"] or 0))
        brackets.append((token, match.start()))
        if (token == "|" and previous in ("", "::=", "(", "|")) or (token == ")" and previous == "|"):
            written.append('"" ')
        previous = token
        written.append(token)
    if previous == "|":
        written.append(' ""')
    _check_nesting([b for b in brackets if b[0] in "()"], text)
    if largest > _MAX_REPETITION:
        raise SchemaError(f"a repetition count above {_MAX_REPETITION:,}")
    if not defined:
        raise SchemaError("no rule is defined: a grammar's rules are written name ::= ..., and it begins at root")
    if "root" not in defined:
        raise SchemaError("no rule named root: the grammar has no beginning")
    _check_names(defined, used, text)
    return "".join(written)


def _check_names(defined: set[str], used: dict[str, int], text: str) -> None:
    """Undefined rules; grammars with macros, whose arguments are names too, are left to the engine."""
    if re.search(r"[A-Za-z_]\s*\(|\[\w+\]\s*::=|\(=", text):
        return
    for name, position in used.items():
        if name not in defined:
            raise SchemaError(f"the rule {name!r} used in {_place(text, position)} is not defined")


def _check_nesting(brackets: list[tuple[str, int]], text: str) -> None:
    opened: list[int] = []
    for token, position in brackets:
        if token == "(":
            opened.append(position)
            if len(opened) > _MAX_NESTING:
                raise SchemaError(f"parentheses are nested deeper than {_MAX_NESTING} in {_place(text, position)}")
        elif not opened:
            raise SchemaError(f"the ')' in {_place(text, position)} closes nothing")
        else:
            opened.pop()
    if opened:
        raise SchemaError(f"the '(' in {_place(text, opened[-1])} is not closed")


def _lark_brackets(text: str) -> list[tuple[str, int]]:
    """Parentheses outside strings, patterns, comments and inline JSON."""
    pattern = r'"(?:[^"\\\n]|\\.)*"|/(?![/\s])(?:[^/\\\n]|\\.)+/|//[^\n]*|\#[^\n]*|\{[^()]*\}|[()]'
    return [(m.group(), m.start()) for m in _matches(pattern, text) if m.group() in "()"]


def _matches(pattern: str, text: str) -> Iterator[re.Match[str]]:
    return re.finditer(pattern, text)


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - text.rfind(chr(10), 0, position)}"
