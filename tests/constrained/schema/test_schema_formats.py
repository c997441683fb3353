"""What a format takes is valid, and what is refused of the valid is what the documentation says."""

from __future__ import annotations

import random
import re

import idna
import pytest

from constrained.json_schema.reading.formats import _letters, format_language
from constrained.patterns.derivative import matches

VALID = {
    "hostname": ["a", "A-1.b", "a" * 63, "a--b.example", "1.2", "ab-c", "abc--d"],
    "email": [
        "a.b+c@d-e.f", '"joe bloggs"@example.com', '"a\\"b"@x', "a@[127.0.0.1]", "a@[IPv6:::1]",
        "a@[IPv6:1:2:3:4:5:6:7:8]",
    ],
    "idn-email": [
        "müller@example.com", "a@bücher.example", "실례@실례.테스트", "a@b", '"ü b"@x', "\x85@x", "a@bücher-münchen.de",
    ],
    "uri-template": ["/o'hara/{id}", "{?a*,b:3}", "é/\ue000"],
    "date-time": ["2020-01-01T00:00:00." + "1" * 20 + "Z", "2016-12-31T23:59:60Z"],
    "time": ["08:30:06.283185123456Z"],
    "iri": ["http://ƒøø.ßår/?\ue000=\U000f0000", "http://a/\U00040000"],
    "duration": ["P1Y2M3DT4H5M6S", "P" + "9" * 20 + "D"],
    "regex": ["[]", "[^]", "\\cA"],
    "relative-json-pointer": ["0#", "120/foo"],
}  # fmt: skip
INVALID = {
    "hostname": [
        "", "xn--Q", "xn--X", "XN--aa---o47jg78q", "a.xn--07jt112bpxg", "ab--c", "-a", "a-", "a" * 64, "é", "a.",
    ],
    "email": ["a@xn--Q", "a@-b", "ü@x", "a@é", '"@x', 'a"b"@x', "a@[IPv6:1:2:3:4:5:6:7::]", "a@[IPv6:1]"],
    "idn-email": [
        "a@xn--Q", "a@BÜCHER", "a@bu\u0308", "a@-ü", "a@ü-", "a@üü--ü", "a@l·a", "a@\u0627", "a@\u302e", "a@ü ", "ü",
        "a@" + "ü" * 15,
    ],
    "uri-template": ["a b", '"', "<", "{", "a\x85", "\ufdd0"],
    "date-time": ["2020-01-01T00:00:00.Z", "2016-12-31T23:59:61Z"],
    "iri": ["http://a/\ue000", "http://a/#\ue000", "http://a/\ufdd0"],
    "duration": ["P", "P1", "PT", "P" + "9" * 21 + "D"],
    "regex": ["[", "\\c", "a**"],
    "relative-json-pointer": ["01", "-1", "/a"],
}  # fmt: skip


@pytest.mark.parametrize("name", VALID)
def test_a_format_takes_what_is_valid(name: str) -> None:
    language = format_language(name, 20)
    assert language is not None
    assert [text for text in VALID[name] if not matches(language, text)] == []


@pytest.mark.parametrize("name", INVALID)
def test_a_format_takes_nothing_invalid(name: str) -> None:
    language = format_language(name, 20)
    assert language is not None
    assert [text for text in INVALID[name] if matches(language, text)] == []


def test_every_label_of_an_address_is_one_that_idna_registers() -> None:
    language = format_language("idn-email")
    assert language is not None
    ranges = re.findall(r"u\{(\w+)\}-\\u\{(\w+)\}", _letters())
    letters = [chr(code) for low, high in ranges for code in range(int(low, 16), int(high, 16) + 1)]
    choose = random.Random(5)
    for _ in range(300):
        label = "".join(choose.choices(letters, k=choose.randrange(1, 15)))
        if choose.random() < 0.3:
            label = label[:6] + "-" + label[6:12] + "9"
        assert matches(language, f"a@{label}"), label
        assert idna.alabel(label)
