"""Languages of the ``format`` values that the drafts define.

Each accepts only what its defining document allows; where the exact language is no practical regular one, a documented
part of it (``email`` without quoted local parts, ``regex`` with groups three deep, leap seconds at
whole and half hours).
"""

from __future__ import annotations

from functools import lru_cache

from constrained.schema.pattern.language import full_language
from constrained.schema.pattern.tree import Node

_LEAP_CENTURIES = r"(?:[02468][048]|[13579][26])00"
_LEAP_YEARS = rf"(?:[0-9]{{2}}(?:0[48]|[2468][048]|[13579][26])|{_LEAP_CENTURIES})"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEARS}-02-29)"
)
_FRACTION = r"(?:\.[0-9]{1,9})?"
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


def _uri_parts(extra: str) -> dict[str, str]:
    pchar = rf"(?:[{_UNRESERVED}{_SUB}:@{extra}]|{_PERCENT})"
    zone = rf"(?:%25(?:[{_UNRESERVED}]|{_PERCENT})+)?"
    bracketed = rf"\[(?:{_IPV6}{zone}|[vV][0-9a-fA-F]+\.[{_UNRESERVED}{_SUB}:]+)\]"
    host = rf"(?:{bracketed}|(?:[{_UNRESERVED}{_SUB}{extra}]|{_PERCENT})*)"
    authority = rf"(?:(?:[{_UNRESERVED}{_SUB}:{extra}]|{_PERCENT})*@)?{host}(?::[0-9]*)?"
    segments = rf"(?:/{pchar}*)*"
    absolute = rf"/(?:{pchar}+{segments})?"
    no_colon = rf"(?:[{_UNRESERVED}{_SUB}@{extra}]|{_PERCENT})+"
    tail = rf"(?:\?(?:{pchar}|[/?])*)?(?:#(?:{pchar}|[/?])*)?"
    scheme = r"[a-zA-Z][a-zA-Z0-9+\-.]*:"
    full = rf"{scheme}(?://{authority}{segments}|{absolute}|{pchar}+{segments}|){tail}"
    relative = rf"(?://{authority}{segments}|{absolute}|{no_colon}{segments}|){tail}"
    return {"full": full, "reference": rf"(?:{full}|{relative})"}


_URI = _uri_parts("")
_IRI = _uri_parts(
    r"\u{a0}-\u{d7ff}\u{f900}-\u{fdcf}\u{fdf0}-\u{ffef}\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}\u{30000}-\u{3fffd}"
)
_ATEXT = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
_DURATION_TIME = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_VARIABLE = r"(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})+(?:\.(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})+)*(?::[1-9][0-9]{0,3}|\*)?"
# Regular expressions with groups up to three deep; quantifiers only behind something to repeat.
_CLASS_MEMBER = r"(?:[^\\\]\[\-]|\\(?:[dDwWsSbtnvfr0]|[^a-zA-Z0-9_]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}))"
_QUANTIFIER = r"(?:(?:[*+?]|\{[0-9]{1,4}(?:,)?\})\??)?"
_ATOM = (
    r"(?:[^\\()\[\]{}|*+?^$]|\\(?:[dDwWsStnvfr]|[^a-zA-Z0-9_]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})"
    rf"|\[\^?(?:0-9|a-z|A-Z|{_CLASS_MEMBER})+-?\])"
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
    "duration": rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)",
    "email": rf"{_ATEXT}+(?:\.{_ATEXT}+)*@(?:{_LABEL}(?:\.{_LABEL})*|\[{_IPV4}\])",
    "hostname": rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "iri": _IRI["full"],
    "iri-reference": _IRI["reference"],
    "json-pointer": _POINTER,
    "regex": _regex_of_regexes(),
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "time": _TIME,
    "uri": _URI["full"],
    "uri-reference": _URI["reference"],
    "uri-template": r"(?:[^\x00-\x20\x22'%<>\\^`{|}\x7f]|%[0-9a-fA-F]{2}"
    rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*",
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
}
_PATTERNS["idn-email"] = _PATTERNS["email"]
_PATTERNS["ip-address"] = _PATTERNS["ipv4"]
_PATTERNS["host-name"] = _PATTERNS["hostname"]

UNENFORCED_FORMATS = frozenset({"idn-hostname"})
"""Defined by a draft, but not enforced here; any name outside both tables is an annotation, as the drafts say."""


@lru_cache(maxsize=64)
def format_language(name: str) -> Node | None:
    """Values of a format; ``None`` when it is none that a draft defines, or is in :data:`UNENFORCED_FORMATS`."""
    pattern = _PATTERNS.get(name)
    return None if pattern is None else full_language(pattern)
