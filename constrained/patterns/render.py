"""Writes languages down: as Rust's regular expressions, as Lark terminals, and as the text of JSON strings."""

from __future__ import annotations

from functools import lru_cache

from constrained.patterns import charset, tree
from constrained.patterns.charset import CharSet
from constrained.patterns.tree import Node

_ANY_TEXT = "/(?s:.*)/"


@lru_cache(maxsize=2048)
def lark_terminal(node: Node) -> str:
    """Right-hand side of a Lark terminal in llguidance's dialect, whose ``&`` and ``~`` are set operators."""
    if not tree.has_set_operators(node):
        return f"/{rust_regex(node)}/" if not isinstance(node, tree.Epsilon) else '""'
    if isinstance(node, tree.Concat):
        return "(" + " ".join(_runs(node.parts)) + ")"
    if isinstance(node, tree.Either):
        return "(" + " | ".join(map(lark_terminal, node.parts)) + ")"
    if isinstance(node, tree.Both):
        # A complement also holds byte strings that are no UTF-8; beside a part that does not, that does not matter.
        has_positive = any(not isinstance(part, tree.Complement) for part in node.parts)
        written = (
            f"~{_grouped(part.part)}" if has_positive and isinstance(part, tree.Complement) else lark_terminal(part)
            for part in node.parts
        )
        return "(" + " & ".join(written) + ")"
    if isinstance(node, tree.Complement):
        return f"({_ANY_TEXT} & ~{_grouped(node.part)})"
    if isinstance(node, tree.Repeat):
        return lark_terminal(node.part) + _bounds(node)
    raise TypeError(f"unexpected {type(node).__name__}")


def _grouped(node: Node) -> str:
    text = lark_terminal(node)
    return text if text.startswith("(") else f"({text})"


def _runs(parts: tuple[Node, ...]) -> list[str]:
    """Neighbours without set operators share one regular expression."""
    written: list[str] = []
    plain: list[Node] = []
    for part in parts:
        if tree.has_set_operators(part):
            if plain:
                written.append(f"/{rust_regex(tree.concat(plain))}/")
                plain = []
            written.append(lark_terminal(part))
        else:
            plain.append(part)
    if plain:
        written.append(f"/{rust_regex(tree.concat(plain))}/")
    return written


def rust_regex(node: Node) -> str:
    """A regular expression for the whole string, in the syntax of Rust's ``regex`` crate.

    ``/`` never occurs unescaped, so the text may stand between the slashes of a Lark terminal.
    """
    return _regex(node, alternation_allowed=True)


def _regex(node: Node, *, alternation_allowed: bool = False) -> str:
    if isinstance(node, tree.Epsilon):
        return "(?:)"
    if isinstance(node, tree.Chars):
        return _chars(node.chars)
    if isinstance(node, tree.Concat):
        return "".join(map(_regex, node.parts))
    if isinstance(node, tree.Either):
        text = "|".join(map(_regex, node.parts))
        return text if alternation_allowed else f"(?:{text})"
    if isinstance(node, tree.Repeat):
        inner = _regex(node.part)
        if not isinstance(node.part, tree.Chars | tree.Either):
            inner = f"(?:{inner})"
        return inner + _bounds(node)
    raise TypeError(f"{type(node).__name__} has no regular expression")


def _bounds(node: tree.Repeat) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
    if simple is not None:
        return simple
    if node.low == node.high:
        return f"{{{node.low}}}"
    return f"{{{node.low},{'' if node.high is None else node.high}}}"


@lru_cache(maxsize=4096)
def _chars(chars: CharSet) -> str:
    if chars == charset.ALL:
        return "(?s:.)"
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return _code(chars[0][0])
    inverse = charset.complement(chars)
    negated = len(inverse) < len(chars)
    shown = inverse if negated else chars
    members = "".join(_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in shown)
    return f"[{'^' if negated else ''}{members}]"


def _code(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and (char.isalnum() or char in " _,:;<>=%@!'`") else f"\\x{{{code:x}}}"


_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROL: CharSet = ((0, 0x1F),)
_ESCAPED = charset.union(_CONTROL, charset.of('"\\'))


@lru_cache(maxsize=2048)
def json_quoted(node: Node) -> Node:
    """What stands between the quotes of a JSON string whose value is in ``node``.

    Each value has one spelling here (the shortest: escapes only where JSON demands them), which is what makes the
    complement of a quoted language the quoted language of the complement.
    """
    return _quoted(node)


@lru_cache(maxsize=4096)
def _quoted_chars(chars: CharSet) -> Node:
    options: list[Node] = [tree.Chars(charset.difference(chars, _ESCAPED))]
    escaped = charset.intersection(chars, _ESCAPED)
    short = charset.intersection(escaped, charset.of("".join(_SHORT_ESCAPES)))
    if short:
        letters = "".join(_SHORT_ESCAPES[chr(c)][1] for a, b in short for c in range(a, b + 1))
        options.append(tree.concat([tree.literal("\\"), tree.Chars(charset.of(letters))]))
    for prefix in (0, 1):
        rest = charset.intersection(charset.difference(escaped, short), ((16 * prefix, 16 * prefix + 15),))
        if rest:
            digits = "".join(f"{c % 16:x}" for a, b in rest for c in range(a, b + 1))
            options.append(tree.concat([tree.literal(f"\\u00{prefix}"), tree.Chars(charset.of(digits))]))
    return tree.either(options)


def _quoted(node: Node) -> Node:
    if isinstance(node, tree.Chars):
        return _quoted_chars(node.chars)
    if isinstance(node, tree.Concat):
        return tree.concat(map(_quoted, node.parts))
    if isinstance(node, tree.Either):
        return tree.either(map(_quoted, node.parts))
    if isinstance(node, tree.Both):
        positive = [_quoted(part) for part in node.parts if not isinstance(part, tree.Complement)]
        if not positive:
            positive = [_quoted(tree.ANYTHING)]
        negative = [tree.complement(_quoted(part.part)) for part in node.parts if isinstance(part, tree.Complement)]
        return tree.both([*positive, *negative])
    if isinstance(node, tree.Repeat):
        return tree.repeat(_quoted(node.part), node.low, node.high)
    if isinstance(node, tree.Complement):
        return tree.both([_quoted(tree.ANYTHING), tree.complement(_quoted(node.part))])
    return node
