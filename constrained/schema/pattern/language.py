"""From a pattern that is searched for to the language of whole strings it accepts."""

from __future__ import annotations

from functools import lru_cache

from constrained.schema.pattern import charset, tree
from constrained.schema.pattern.charset import CharSet
from constrained.schema.pattern.derivative import derive
from constrained.schema.pattern.parser import PatternUnsupportedError, parse
from constrained.schema.pattern.tree import Node

# Ends of the string, as characters outside Unicode: ``^`` consumes the first, ``$`` the last.
_START: CharSet = ((-2, -2),)
_END: CharSet = ((-1, -1),)
_MAX_ASSERTIONS = 8


@lru_cache(maxsize=512)
def search_language(pattern: str) -> Node:
    """Strings in which ``pattern`` matches somewhere, JSON Schema's meaning of ``pattern``.

    Raises
    ------
    PatternSyntaxError, PatternUnsupportedError
        See :func:`constrained.schema.pattern.parser.parse`; also for assertions inside a repetition.
    """
    body = _with_marks(parse(pattern))
    before = tree.either([tree.EPSILON, tree.concat([tree.Chars(_START), tree.ANYTHING])])
    after = tree.either([tree.EPSILON, tree.concat([tree.ANYTHING, tree.Chars(_END)])])
    return _strip_marks(_resolve_look_aheads(tree.concat([before, body]), after))


@lru_cache(maxsize=512)
def full_language(pattern: str, dot_excludes: CharSet = charset.LINE_END, *, more_escapes: bool = False) -> Node:
    """Strings that ``pattern`` matches as a whole, whether or not it is anchored."""
    body = _with_marks(parse(pattern, dot_excludes=dot_excludes, more_escapes=more_escapes))
    before = tree.repeat(tree.Chars(_START), 0, 1)
    after = tree.repeat(tree.Chars(_END), 0, 1)
    # A pattern without ^ leaves the start mark to ``before``; one with ^ consumes it itself.
    return _strip_marks(_resolve_look_aheads(tree.concat([before, body]), after))


def _with_marks(node: Node) -> Node:
    if isinstance(node, tree.StartAnchor):
        return tree.Chars(_START)
    if isinstance(node, tree.EndAnchor):
        return tree.Chars(_END)
    if isinstance(node, tree.Concat):
        return tree.concat(map(_with_marks, node.parts))
    if isinstance(node, tree.Either):
        return tree.either(map(_with_marks, node.parts))
    if isinstance(node, tree.Repeat):
        return tree.repeat(_with_marks(node.part), node.low, node.high)
    if isinstance(node, tree.LookAhead):
        return tree.LookAhead(_with_marks(node.part), node.negative)
    return node


def _resolve_look_aheads(node: Node, rest: Node) -> Node:
    """``node`` followed by ``rest``, with each look-ahead turned into an intersection with all that follows it."""
    if isinstance(node, tree.LookAhead):
        wanted = _resolve_look_aheads(node.part, tree.concat([tree.ANYTHING, tree.repeat(tree.Chars(_END), 0, 1)]))
        return tree.both([tree.complement(wanted) if node.negative else wanted, rest])
    if not _has_look_ahead(node):
        return tree.concat([node, rest])
    if isinstance(node, tree.Concat):
        for part in reversed(node.parts):
            rest = _resolve_look_aheads(part, rest)
        return rest
    if isinstance(node, tree.Either):
        return tree.either(_resolve_look_aheads(part, rest) for part in node.parts)
    if isinstance(node, tree.Repeat) and node.low == 0 and node.high == 1:
        return tree.either([_resolve_look_aheads(node.part, rest), rest])
    raise PatternUnsupportedError("a look-ahead inside a repetition is not supported", 0)


def _has_look_ahead(node: Node) -> bool:
    return isinstance(node, tree.LookAhead) or any(_has_look_ahead(child) for child in tree.children(node))


def _strip_marks(node: Node) -> Node:
    """Words w such that (start mark)+ w (end mark)+ is in ``node``: an anchor may be asserted any number of times."""
    forward = _derive_repeatedly(node, _START)
    return _reverse(_derive_repeatedly(_reverse(forward), _END))


def _derive_repeatedly(node: Node, mark: CharSet) -> Node:
    options: list[Node] = []
    seen: set[Node] = set()
    while node != tree.NOTHING and node not in seen:
        seen.add(node)
        if len(seen) > _MAX_ASSERTIONS:
            raise PatternUnsupportedError("anchors are repeated in too many ways", 0)
        node = derive(node, mark[0][0])
        options.append(_without_mark(node, mark))
        if tree.has_set_operators(node):
            break  # inside a complement a second mark would be one mark too many, not the same assertion again
    return tree.either(options)


def _reverse(node: Node) -> Node:
    if isinstance(node, tree.Concat):
        return tree.Concat(tuple(_reverse(part) for part in reversed(node.parts)))
    if isinstance(node, tree.Either):
        return tree.either(map(_reverse, node.parts))
    if isinstance(node, tree.Both):
        return tree.both(map(_reverse, node.parts))
    if isinstance(node, tree.Complement):
        return tree.complement(_reverse(node.part))
    if isinstance(node, tree.Repeat):
        return tree.Repeat(_reverse(node.part), node.low, node.high)
    return node


def _without_mark(node: Node, mark: CharSet) -> Node:
    if isinstance(node, tree.Chars):
        return tree.Chars(charset.difference(node.chars, mark)) if charset.contains(node.chars, mark[0][0]) else node
    if isinstance(node, tree.Concat):
        return tree.concat(_without_mark(part, mark) for part in node.parts)
    if isinstance(node, tree.Either):
        return tree.either(_without_mark(part, mark) for part in node.parts)
    if isinstance(node, tree.Both):
        return tree.both(_without_mark(part, mark) for part in node.parts)
    if isinstance(node, tree.Complement):
        return tree.complement(_without_mark(node.part, mark))
    if isinstance(node, tree.Repeat):
        return tree.repeat(_without_mark(node.part, mark), node.low, node.high)
    return node
