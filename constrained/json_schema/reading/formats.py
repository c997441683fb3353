"""Languages of the ``format`` values that the drafts define.

Each accepts only what its defining document allows; where the exact language is no practical regular one, a documented
part of it: ``regex`` with groups three deep, leap seconds at whole and half hours, and host names without ``xn--``,
since no automaton knows Punycode. Domains of ``idn-email`` have left-to-right letters without marks, 14 to a label.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from constrained.patterns import charset
from constrained.patterns.language import full_language
from constrained.patterns.tree import Node

_LEAP_CENTURIES = r"(?:[02468][048]|[13579][26])00"
_LEAP_YEARS = rf"(?:[0-9]{{2}}(?:0[48]|[2468][048]|[13579][26])|{_LEAP_CENTURIES})"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEARS}-02-29)"
)
_FRACTION = r"(?:\.DIGITS)?"  # DIGITS: as many as a number may have
_OFFSET = r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"


def _leap_seconds() -> str:
    """23:59:60 UTC in each offset of whole and half hours."""
    options = ["23:59:60{fraction}(?:[zZ]|[+-]00:00)"]
    for minutes in range(30, 24 * 60, 30):
        offset = f"{minutes // 60:02}:{minutes % 60:02}"
        for sign, shift in (("\\+", minutes), ("-", -minutes)):
            local = (23 * 60 + 59 + shift) % (24 * 60)
            options.append(f"{local // 60:02}:{local % 60:02}:60{{fraction}}{sign}{offset}")
    return "|".join(options).replace("{fraction}", _FRACTION)


_TIME = rf"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{_FRACTION}{_OFFSET}|{_leap_seconds()})"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_H16 = r"[0-9a-fA-F]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    "(?:"
    + "|".join(
        [
            rf"(?:{_H16}:){{6}}{_LS32}",
            rf"::(?:{_H16}:){{5}}{_LS32}",
            rf"(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}",
            rf"(?:(?:{_H16}:)?{_H16})?::(?:{_H16}:){{3}}{_LS32}",
            rf"(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}",
            rf"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
            rf"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
            rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
            rf"(?:(?:{_H16}:){{0,6}}{_H16})?::",
        ]
    )
    + ")"
)
_UNRESERVED = r"a-zA-Z0-9\-._~"
_SUB = r"!$&'()*+,;="
_PERCENT = r"%[0-9a-fA-F]{2}"


def _uri_parts(extra: str, query_extra: str = "") -> dict[str, str]:
    pchar = rf"(?:[{_UNRESERVED}{_SUB}:@{extra}]|{_PERCENT})"
    zone = rf"(?:%25(?:[{_UNRESERVED}]|{_PERCENT})+)?"
    bracketed = rf"\[(?:{_IPV6}{zone}|[vV][0-9a-fA-F]+\.[{_UNRESERVED}{_SUB}:]+)\]"
    host = rf"(?:{bracketed}|(?:[{_UNRESERVED}{_SUB}{extra}]|{_PERCENT})*)"
    authority = rf"(?:(?:[{_UNRESERVED}{_SUB}:{extra}]|{_PERCENT})*@)?{host}(?::[0-9]*)?"
    segments = rf"(?:/{pchar}*)*"
    absolute = rf"/(?:{pchar}+{segments})?"
    no_colon = rf"(?:[{_UNRESERVED}{_SUB}@{extra}]|{_PERCENT})+"
    tail = rf"(?:\?(?:{pchar}|[/?{query_extra}])*)?(?:#(?:{pchar}|[/?])*)?"
    scheme = r"[a-zA-Z][a-zA-Z0-9+\-.]*:"
    full = rf"{scheme}(?://{authority}{segments}|{absolute}|{pchar}+{segments}|){tail}"
    relative = rf"(?://{authority}{segments}|{absolute}|{no_colon}{segments}|){tail}"
    return {"full": full, "reference": rf"(?:{full}|{relative})"}


_URI = _uri_parts("")
_UCSCHAR = r"\u{a0}-\u{d7ff}\u{f900}-\u{fdcf}\u{fdf0}-\u{ffef}" + "".join(
    f"\\u{{{plane:x}{'1000' if plane == 14 else '0000'}}}-\\u{{{plane:x}fffd}}" for plane in range(1, 15)
)
_PRIVATE = r"\u{e000}-\u{f8ff}\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"
_IRI = _uri_parts(_UCSCHAR, _PRIVATE)
_ATEXT = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]"


def _label(inner: str, most: int) -> str:
    """A label of a host name, without hyphens at its ends, and at its third and fourth place together."""
    any_char = rf"[{inner}\-]"
    one = f"[{inner}]"
    longer = f"{any_char}(?:{one}{any_char}|-{one}){any_char}{{0,{most - 5}}}{one}"
    return f"{one}(?:{any_char}{{0,2}}{one}|{longer})?"


def _letters() -> str:
    """Letters that IDNA 2008 allows wherever they stand (RFC 5892): left to right, and the same under normalisation."""
    found = []
    for code in (*range(0x80, 0xD800), *range(0xF900, 0xFFFE)):
        char = chr(code)
        if (
            unicodedata.category(char) in ("Ll", "Lo", "Lm")
            and unicodedata.bidirectional(char) == "L"
            and unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", char).casefold()) == char
            and not any(low <= code <= high for low, high in _DISALLOWED_LETTERS)
        ):
            found.append((code, code))
    return "".join(f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in charset.normalise(found))


_DISALLOWED_LETTERS = (
    (0x1100, 0x11FF), (0xA960, 0xA97C), (0xD7B0, 0xD7FB),  # old Hangul
    (0x302E, 0x302F), (0x3031, 0x3035), (0x303B, 0x303B),  # RFC 5892, section 2.6
)  # fmt: skip
_LABEL = _label("a-zA-Z0-9", 63)
_DOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"
_QUOTED = r"\x22(?:[ !#-\[\]-~]|\\[ -~])*\x22"


def _mail_ipv6() -> str:
    """RFC 5321's, in which two colons stand for two groups at least."""

    def groups(count: int) -> str:
        return "" if count == 0 else f"{_H16}(?::{_H16}){{{count - 1}}}"

    short = [f"{groups(left)}::{groups(right)}" for left in range(7) for right in range(7 - left)]
    return rf"\[IPv6:(?:{groups(8)}|{'|'.join(short)})\]"


_DURATION_TIME = r"T(?:DIGITSH(?:DIGITSM(?:DIGITSS)?)?|DIGITSM(?:DIGITSS)?|DIGITSS)"
_DURATION_DATE = r"(?:DIGITSY(?:DIGITSM(?:DIGITSD)?)?|DIGITSM(?:DIGITSD)?|DIGITSD)"
_VARIABLE = r"(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})+(?:\.(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})+)*(?::[1-9][0-9]{0,3}|\*)?"
# Regular expressions with groups up to three deep; quantifiers only behind something to repeat.
_CLASS_MEMBER = r"(?:[^\\\]\[\-]|\\(?:[dDwWsSbtnvfr0]|c[a-zA-Z]|[^a-zA-Z0-9_]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}))"
_QUANTIFIER = r"(?:(?:[*+?]|\{[0-9]{1,4}(?:,)?\})\??)?"
_ATOM = (
    r"(?:[^\\()\[\]{}|*+?^$]|\\(?:[dDwWsStnvfr]|c[a-zA-Z]|[^a-zA-Z0-9_]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})"
    rf"|\[\^?(?:0-9|a-z|A-Z|{_CLASS_MEMBER})*-?\])"
)


def _regex_of_regexes() -> str:
    sequence = rf"(?:\^|\$|{_ATOM}{_QUANTIFIER})*"
    for _ in range(3):
        group = rf"\((?:\?[:=!])?{sequence}(?:\|{sequence})*\)"
        sequence = rf"(?:\^|\$|(?:{_ATOM}|{group}){_QUANTIFIER})*"
    return rf"{sequence}(?:\|{sequence})*"


_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

_PATTERNS: dict[str, str] = {
    "date": _DATE,
    "date-time": rf"{_DATE}[tT]{_TIME}",
    "duration": rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|DIGITSW)",
    "email": rf"(?:{_ATEXT}+(?:\.{_ATEXT}+)*|{_QUOTED})@(?:{_DOMAIN}|\[{_IPV4}\]|{_mail_ipv6()})",
    "hostname": rf"(?=.{{1,253}}$){_DOMAIN}",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "iri": _IRI["full"],
    "iri-reference": _IRI["reference"],
    "json-pointer": _POINTER,
    "regex": _regex_of_regexes(),
    "relative-json-pointer": rf"(?:0|(?!0)DIGITS)(?:#|{_POINTER})",
    "time": _TIME,
    "uri": _URI["full"],
    "uri-reference": _URI["reference"],
    # Literals with the apostrophe, which RFC 6570 as it was printed leaves out: erratum 6937.
    "uri-template": rf"(?:[!#-;=?-\[\]_a-z~{_UCSCHAR}{_PRIVATE}]|{_PERCENT}"
    rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*",
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
}
_PATTERNS["ip-address"] = _PATTERNS["ipv4"]
_PATTERNS["host-name"] = _PATTERNS["hostname"]

UNENFORCED_FORMATS = frozenset({"idn-hostname"})
"""Defined by a draft, but not enforced here; any name outside both tables is an annotation, as the drafts say."""


@lru_cache(maxsize=256)
def format_language(name: str, digits: int | None = None) -> Node | None:
    """Values of a format; ``None`` when it is none that a draft defines, or is in :data:`UNENFORCED_FORMATS`.

    ``digits`` bounds numbers of any length: fractions of seconds, parts of a duration, indices.
    """
    pattern = _idn_email() if name == "idn-email" else _PATTERNS.get(name)
    if pattern is None:
        return None
    return full_language(pattern.replace("DIGITS", f"[0-9]{{1,{digits or ''}}}"))


@lru_cache(maxsize=1)
def _idn_email() -> str:
    beyond_ascii = r"\u{80}-\u{d7ff}\u{e000}-\u{10ffff}"  # RFC 6532, section 3.1
    atext = f"[{_ATEXT[1:-1]}{beyond_ascii}]"
    label = rf"(?:{_LABEL}|{_label('a-z0-9' + _letters(), 14)})"
    domain = rf"(?:{_DOMAIN}|{label}(?:\.{label}){{0,3}})"
    quoted = rf"\x22(?:[ !#-\[\]-~{beyond_ascii}]|\\[ -~])*\x22"
    return rf"(?:{atext}+(?:\.{atext}+)*|{quoted})@(?:{domain}|\[{_IPV4}\]|{_mail_ipv6()})"
