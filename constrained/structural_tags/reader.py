"""Reads the formats of a structural tag, with the meaning that xgrammar 0.2.9 gives them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from constrained.json_schema.reading.document import escape_pointer
from constrained.patterns import tree
from constrained.patterns.tree import Node
from constrained.structural_tags.pieces import (
    NotExpressibleError,
    Piece,
    Text,
    Token,
    choice,
    constant,
    repeat,
    sequence,
)

ReadSchema = Callable[[dict[str, Any], str], Piece]
ReadPattern = Callable[[dict[str, Any], str], Node]
ReadGrammar = Callable[[dict[str, Any], str], Piece]


class TagReader:
    """Turns formats into pieces.

    Parameters
    ----------
    read_schema, read_pattern, read_grammar
        Give the piece of a ``json_schema`` format, the language of a ``regex`` format and the piece of a ``grammar``
        format, with its JSON pointer.
    """

    def __init__(self, read_schema: ReadSchema, read_pattern: ReadPattern, read_grammar: ReadGrammar) -> None:
        self._read_schema = read_schema
        self._read_grammar = read_grammar
        self._read_pattern = read_pattern
        self._choices: dict[str, Piece] = {}

    def format(self, value: Any, pointer: str, ends: Sequence[str] = ()) -> Piece:
        """``ends`` are the ends of the tag around it: free text inside holds none of them.

        Raises
        ------
        SchemaError
            Of a schema, pattern or grammar inside.
        NotExpressibleError
            What is not written for llguidance, and what is malformed: xgrammar says how.
        """
        if not isinstance(value, dict):
            raise NotExpressibleError("a format is no object")
        kind = value.get("type", "tag" if "begin" in value else None)
        match kind:
            case "const_string":
                return constant(_string(value, "value"))
            case "json_schema":
                return self._read_schema(value, pointer)
            case "regex":
                return Text(self._read_pattern(value, pointer))
            case "grammar":
                return self._read_grammar(value, pointer)
            case "any_text":
                return _free_text(value, ends)
            case "token":
                return _token(value)
            case "sequence":
                return sequence(self._several(value, "elements", pointer, ends))
            case "or":
                return self._choice(value, pointer, ends)
            case "optional" | "star" | "plus" | "repeat":
                low, high = _bounds(value, kind)
                return repeat(self.format(value.get("content"), f"{pointer}/content", ends), low, high)
            case "tag":
                return self._tag(value, pointer)
            case "triggered_tags":
                return self._triggered_tags(value, pointer, ends)
            case "tags_with_separator":
                return self._tags_with_separator(value, pointer)
            case "dispatch":
                return self._dispatch(value, pointer, ends)
            case _:
                raise NotExpressibleError(f"the format {kind!r} is not among what llguidance is given")

    def _several(self, value: dict[str, Any], name: str, pointer: str, ends: Sequence[str]) -> list[Piece]:
        return [self.format(one, f"{pointer}/{name}/{i}", ends) for i, one in enumerate(_list(value, name))]

    def _choice(self, value: dict[str, Any], pointer: str, ends: Sequence[str]) -> Piece:
        """Equal choices are one piece: all calls that may come first may come again."""
        key = json.dumps([value, *ends])
        if key not in self._choices:
            self._choices[key] = choice(self._several(value, "elements", pointer, ends))
        return self._choices[key]

    def _tag(self, value: dict[str, Any], pointer: str, *, skipped: int = 0) -> Piece:
        """A tag; without the first characters of its beginning, which a trigger was."""
        begin, end = value.get("begin"), value.get("end")
        if isinstance(begin, str):
            first = constant(begin[skipped:])
        else:
            first = self.format(begin, f"{pointer}/begin")
        if isinstance(end, str):
            end = [end]
        if isinstance(end, list):
            ends = [one for one in end if isinstance(one, str)]
            if len(ends) < len(end) or not ends:
                raise NotExpressibleError("an end is no text")
            last = choice(map(constant, ends))
        else:
            ends, last = [], self.format(end, f"{pointer}/end")
        content = self.format(value.get("content"), f"{pointer}/content", [one for one in ends if one])
        return sequence([first, content, last])

    def _triggered_tags(self, value: dict[str, Any], pointer: str, ends: Sequence[str]) -> Piece:
        triggers, tags = _strings(value, "triggers"), _list(value, "tags")
        by_trigger: dict[str, list[Piece]] = {trigger: [] for trigger in triggers}
        whole: list[Piece] = []
        for index, tag in enumerate(tags):
            begin = tag.get("begin") if isinstance(tag, dict) else None
            fitting = [trigger for trigger in triggers if isinstance(begin, str) and begin.startswith(trigger)]
            if len(fitting) != 1:
                raise NotExpressibleError("a tag has no trigger, or two")
            place = f"{pointer}/tags/{index}"
            by_trigger[fitting[0]].append(self._tag(tag, place, skipped=len(fitting[0])))
            whole.append(sequence([constant(fitting[0]), by_trigger[fitting[0]][-1]]))
        if not whole:
            raise NotExpressibleError("there are no tags")
        is_needed, stops = value.get("at_least_one") is True, value.get("stop_after_first") is True
        if is_needed and stops:
            return choice(whole)
        excludes = [*_strings(value, "excludes"), *ends]
        rules = [(trigger, choice(pieces)) for trigger, pieces in by_trigger.items() if pieces]
        later = _dispatched(rules, excludes, is_loop=not stops)
        return sequence([choice(whole), later]) if is_needed else later

    def _tags_with_separator(self, value: dict[str, Any], pointer: str) -> Piece:
        one = choice(self._tag(tag, f"{pointer}/tags/{i}") for i, tag in enumerate(_list(value, "tags")))
        more = repeat(sequence([constant(_string(value, "separator")), one]), 0, None)
        tags = one if value.get("stop_after_first") is True else sequence([one, more])
        return tags if value.get("at_least_one") is True else repeat(tags, 0, 1)

    def _dispatch(self, value: dict[str, Any], pointer: str, ends: Sequence[str]) -> Piece:
        rules: list[tuple[str, Piece]] = []
        for index, rule in enumerate(_list(value, "rules")):
            if not isinstance(rule, list) or len(rule) != 2 or not isinstance(rule[0], str) or not rule[0]:
                raise NotExpressibleError("a rule is no pair of a text and a format")
            place = f"{pointer}/rules/{escape_pointer(str(index))}/1"
            rules.append((rule[0], self.format(rule[1], place, ends)))
        return _dispatched(rules, _strings(value, "excludes"), is_loop=value.get("loop", True) is not False)


def _dispatched(rules: Sequence[tuple[str, Piece]], excludes: Sequence[str], *, is_loop: bool) -> Piece:
    """Free text, in which a trigger begins the content of its rule."""
    words = [*(trigger for trigger, _ in rules), *excludes]
    if any(one is not other and one in other for one in words for other in words):
        raise NotExpressibleError("a trigger is part of another one, or of an excluded text")
    # The text ends with the first trigger in it; where triggers may overlap, not every text before one is free of it.
    overlaps = any(_overlap(one, other) for one in words for other in words)
    calls = []
    for trigger, content in rules:
        text: Node = tree.concat([_without(words), tree.literal(trigger)])
        if overlaps:
            early = [tree.concat([tree.ANYTHING, tree.literal(word), tree.ANY_CHAR, tree.ANYTHING]) for word in words]
            text = tree.both([text, *(tree.complement(one) for one in early)])
        calls.append(sequence([Text(text), content]))
    rest = Text(_without(words), tuple(words))
    if not calls:
        return rest
    if is_loop:
        return sequence([repeat(choice(calls), 0, None), rest])
    return choice([*calls, rest])


def _overlap(one: str, other: str) -> bool:
    """Whether an end of one text, not all of it, begins the other."""
    return any(other.startswith(one[start:]) for start in range(1, len(one)))


def _without(texts: Sequence[str]) -> Node:
    """Texts in which none of these stands."""
    around = [tree.concat([tree.ANYTHING, tree.literal(text), tree.ANYTHING]) for text in dict.fromkeys(texts)]
    return tree.complement(tree.either(around)) if around else tree.ANYTHING


def _free_text(value: dict[str, Any], ends: Sequence[str]) -> Piece:
    if value.get("max_tokens") is not None:
        raise NotExpressibleError("max_tokens counts tokens")
    excludes = [*_strings(value, "excludes"), *ends]
    language = _without(excludes)
    most = value.get("max_chars")
    if most is not None:
        if not isinstance(most, int) or isinstance(most, bool) or most < 0:
            raise NotExpressibleError("max_chars is no count")
        language = tree.both([language, tree.repeat(tree.ANY_CHAR, 0, most)])
    return Text(language, tuple(excludes))


def _token(value: dict[str, Any]) -> Piece:
    token = value.get("token")
    if not isinstance(token, int) or isinstance(token, bool) or token < 0:
        raise NotExpressibleError("a token is named by its text")
    return Token(token)


def _bounds(value: dict[str, Any], kind: str) -> tuple[int, int | None]:
    fixed: dict[str, tuple[int, int | None]] = {"optional": (0, 1), "star": (0, None), "plus": (1, None)}
    if kind in fixed:
        return fixed[kind]
    low, high = value.get("min"), value.get("max")
    if not isinstance(low, int) or not isinstance(high, int) or low < 0 or (high != -1 and high < low):
        raise NotExpressibleError("the bounds of a repetition are no counts")
    return low, None if high == -1 else high


def _string(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise NotExpressibleError(f"{name!r} is no text")
    return found


def _list(value: dict[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    if not isinstance(found, list):
        raise NotExpressibleError(f"{name!r} is no list")
    return found


def _strings(value: dict[str, Any], name: str) -> list[str]:
    found = value.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise NotExpressibleError(f"{name!r} is no list of texts")
    return list(dict.fromkeys(found))
