"""Reads ECMA-262 regular expressions, the dialect of JSON Schema's ``pattern``."""

from __future__ import annotations

from constrained.patterns import charset, tree
from constrained.patterns.charset import CharSet
from constrained.patterns.tree import Node

_MAX_REPEAT = 1_000_000
_MAX_GROUP_DEPTH = 150
_CONTROL = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_MORE_CONTROL = {"a": "\a", "e": "\x1b"}
_CLASSES: dict[str, CharSet] = {
    "d": charset.DIGIT,
    "w": charset.WORD,
    "s": charset.SPACE,
    "D": charset.complement(charset.DIGIT),
    "W": charset.complement(charset.WORD),
    "S": charset.complement(charset.SPACE),
}


class PatternSyntaxError(ValueError):
    """The pattern is no regular expression; ``position`` counts characters."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} at position {position}")
        self.position = position


class PatternUnsupportedError(PatternSyntaxError):
    """A valid pattern that is no regular language, or whose meaning depends on the engine."""


def parse(pattern: str, *, dot_excludes: CharSet = charset.LINE_END, more_escapes: bool = False) -> Node:
    """Tree of ``pattern``, with anchors and look-aheads still in place.

    Parameters
    ----------
    pattern
        Source text, without delimiters and flags.
    dot_excludes
        What ``.`` does not match.
    more_escapes
        Also read ``\\a`` and ``\\e``, which Perl and its kin have and ECMA-262 has not.

    Raises
    ------
    PatternSyntaxError
        Not a pattern; with the position.
    PatternUnsupportedError
        Back-references, look-behind, inline flags, Unicode properties other than categories.
    """
    reader = _Reader(pattern, dot_excludes, more_escapes)
    node = reader.disjunction(0)
    if reader.position < len(pattern):
        raise PatternSyntaxError("unbalanced ')'", reader.position)
    return node


class _Reader:
    def __init__(self, text: str, dot_excludes: CharSet, more_escapes: bool) -> None:
        self.text = text
        self.controls = _CONTROL | (_MORE_CONTROL if more_escapes else {})
        self.position = 0
        self.dot = charset.complement(dot_excludes)

    def peek(self, offset: int = 0) -> str:
        index = self.position + offset
        return self.text[index] if index < len(self.text) else ""

    def take(self) -> str:
        char = self.peek()
        if not char:
            raise PatternSyntaxError("the pattern ends too early", self.position)
        self.position += 1
        return char

    def accept(self, text: str) -> bool:
        if self.text.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def disjunction(self, depth: int) -> Node:
        if depth > _MAX_GROUP_DEPTH:
            raise PatternUnsupportedError("groups are nested too deeply", self.position)
        options = [self.sequence(depth)]
        while self.accept("|"):
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else tree.either(options)

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.term(depth))
        return tree.concat(parts)

    def term(self, depth: int) -> Node:
        start = self.position
        node = self.atom(depth)
        bounds = self.quantifier()
        if bounds is None:
            return node
        if isinstance(node, tree.StartAnchor | tree.EndAnchor | tree.WordBoundary | tree.LookAhead):
            raise PatternUnsupportedError("a quantifier behind an assertion is not supported", start)
        low, high = bounds
        if max(low, high or 0) > _MAX_REPEAT:
            raise PatternUnsupportedError(f"a repetition count above {_MAX_REPEAT}", start)
        if high is not None and low > high:
            raise PatternSyntaxError("the repetition's numbers are out of order", start)
        return tree.repeat(node, low, high)

    def quantifier(self) -> tuple[int, int | None] | None:
        char = self.peek()
        bounds: tuple[int, int | None]
        if char and char in "*+?":
            self.position += 1
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        elif char == "{":
            found = self.braces()
            if found is None:
                return None
            bounds = found
        else:
            return None
        self.accept("?")  # a lazy quantifier matches the same strings
        after = self.peek()
        if (after and after in "*+?") or (after == "{" and self.braces() is not None):
            raise PatternSyntaxError("nothing to repeat", self.position)
        return bounds

    def braces(self) -> tuple[int, int | None] | None:
        """``{n}``, ``{n,}`` or ``{n,m}``; anything else is a literal brace (ECMA-262 Annex B)."""
        end = self.text.find("}", self.position)
        if end < 0:
            return None
        low, comma, high = self.text[self.position + 1 : end].partition(",")
        if not low and high.isascii() and high.isdigit():
            raise PatternUnsupportedError(f"engines disagree on {{,{high}}}: write {{0,{high}}}", self.position)
        if not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
            return None
        if len(low) > 9 or len(high) > 9:
            raise PatternUnsupportedError(f"a repetition count above {_MAX_REPEAT}", self.position)
        self.position = end + 1
        return int(low), (int(high) if high else None) if comma else int(low)

    def atom(self, depth: int) -> Node:
        start = self.position
        char = self.take()
        if char == "^":
            return tree.StartAnchor()
        if char == "$":
            return tree.EndAnchor()
        if char == ".":
            return tree.Chars(self.dot)
        if char == "[":
            return tree.Chars(self.char_class(start))
        if char == "(":
            return self.group(start, depth)
        if char == "\\":
            if self.peek() and self.peek() in "bB":
                return tree.WordBoundary(self.take() == "B")
            return tree.Chars(self.escape(in_class=False))
        if char in "*+?":
            raise PatternSyntaxError("nothing to repeat", start)
        if char == "{" and self.text.find("}", start) > 0:
            self.position = start
            if self.braces() is not None:
                raise PatternSyntaxError("nothing to repeat", start)
            self.position = start + 1
        return tree.Chars(_single(char, start))

    def group(self, start: int, depth: int) -> Node:
        look_ahead: bool | None = None
        if self.accept("?"):
            if self.accept(":"):
                pass
            elif self.accept("=") or self.accept("!"):
                look_ahead = self.text[self.position - 1] == "!"
            elif self.accept("<=") or self.accept("<!"):
                raise PatternUnsupportedError("look-behind (not supported; make it a part of the pattern)", start)
            elif self.accept("<") or self.accept("P<"):
                end = self.text.find(">", self.position)
                if end < 0 or not self.text[self.position : end].isidentifier():
                    raise PatternSyntaxError("a group name that is no name", start)
                self.position = end + 1
            elif self.accept("P="):
                raise PatternUnsupportedError("back-references are not supported", start)
            elif self.accept(">"):
                raise PatternUnsupportedError("atomic groups are not supported", start)
            else:
                raise PatternUnsupportedError("inline flags and group extensions are not supported", start)
        node = self.disjunction(depth + 1)
        if not self.accept(")"):
            raise PatternSyntaxError("missing ')' for the group", start)
        return node if look_ahead is None else tree.LookAhead(node, look_ahead)

    def char_class(self, start: int) -> CharSet:
        negated = self.accept("^")
        members: list[CharSet] = []
        while not self.accept("]"):
            if not self.peek():
                raise PatternSyntaxError("missing ']' for the character class", start)
            low_start = self.position
            low = self.class_member()
            if self.peek() == "-" and self.peek(1) not in ("]", ""):
                self.position += 1
                high = self.class_member()
                low_code, high_code = _only(low), _only(high)
                if low_code is None or high_code is None:
                    members += [low, high, charset.of("-")]  # Annex B: a class next to '-' makes '-' a member
                    continue
                if low_code > high_code:
                    raise PatternSyntaxError("a character range out of order", low_start)
                low = charset.difference(
                    ((low_code, high_code),), charset.difference(((0, charset.LAST),), charset.ALL)
                )
            members.append(low)
        found = charset.union(*members) if members else charset.NONE
        return charset.complement(found) if negated else found

    def class_member(self) -> CharSet:
        start = self.position
        char = self.take()
        return self.escape(in_class=True) if char == "\\" else _single(char, start)

    def escape(self, *, in_class: bool) -> CharSet:
        start = self.position - 1
        char = self.take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in self.controls:
            return charset.of(self.controls[char])
        if char == "b" and in_class:
            return charset.of("\b")
        if char in "pP":
            return self.unicode_property(start, negated=char == "P")
        if char == "0" and not self.peek().isdigit():
            return charset.of("\0")
        if char == "x":
            return self.hexadecimal(2, start)
        if char == "u":
            return self.unicode_escape(start)
        if char == "c":
            letter = self.take()
            if not (letter.isascii() and letter.isalpha()):
                raise PatternSyntaxError("a control escape without a letter", start)
            return charset.of(chr(ord(letter) % 32))
        if char.isdigit() or char == "k":
            raise PatternUnsupportedError("back-references are not supported", start)
        if char in "AZzG":
            raise PatternUnsupportedError(f"the anchor \\{char} is not ECMA-262; write ^ or $", start)
        if char.isascii() and char.isalpha():
            raise PatternSyntaxError(f"the escape \\{char} does not exist", start)
        return _single(char, start)

    def unicode_property(self, start: int, *, negated: bool) -> CharSet:
        name = ""
        if self.accept("{"):
            end = self.text.find("}", self.position)
            if end < 0:
                raise PatternSyntaxError("missing '}' of a Unicode property", start)
            name = self.text[self.position : end]
            self.position = end + 1
        found = charset.category(name) if name else None
        if found is None:
            raise PatternUnsupportedError("only Unicode general categories such as \\p{L} are supported", start)
        return charset.complement(found) if negated else found

    def unicode_escape(self, start: int) -> CharSet:
        if self.peek() == "{":
            end = self.text.find("}", self.position)
            digits = self.text[self.position + 1 : end] if end > 0 else ""
            if not digits or len(digits) > 6 or any(d not in "0123456789abcdefABCDEF" for d in digits):
                raise PatternSyntaxError("a Unicode escape that is no number", start)
            self.position = end + 1
            return _single_code(int(digits, 16), start)
        high = self.hex_value(4, start)
        if 0xD800 <= high < 0xDC00 and self.accept("\\u"):
            low = self.hex_value(4, start)
            if not 0xDC00 <= low < 0xE000:
                raise PatternSyntaxError("an unpaired surrogate", start)
            high = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
        elif 0xD800 <= high < 0xE000:
            # Half of a surrogate pair, in a class such as [\\ud800-\\udfff]: no character of valid UTF-8.
            return ((high, high),)
        return _single_code(high, start)

    def hexadecimal(self, count: int, start: int) -> CharSet:
        return _single_code(self.hex_value(count, start), start)

    def hex_value(self, count: int, start: int) -> int:
        digits = self.text[self.position : self.position + count]
        if len(digits) < count or any(d not in "0123456789abcdefABCDEF" for d in digits):
            raise PatternSyntaxError(f"an escape that needs {count} hexadecimal digits", start)
        self.position += count
        return int(digits, 16)


def _single(char: str, position: int) -> CharSet:
    return _single_code(ord(char), position)


def _single_code(code: int, position: int) -> CharSet:
    if code > charset.LAST or 0xD800 <= code <= 0xDFFF:
        raise PatternSyntaxError("a code point that is no character", position)
    return ((code, code),)


def _only(chars: CharSet) -> int | None:
    return chars[0][0] if len(chars) == 1 and chars[0][0] == chars[0][1] else None
