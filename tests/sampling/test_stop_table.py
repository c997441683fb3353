"""Every way to end, in every combination: what ends the answer, what is said of it, and what of the text is shown."""

from __future__ import annotations

from typing import Any

import pytest

from sampling.params import SamplingParams
from scheduler.messages import Finish, GenerateRequest
from scheduler.planning.plan import RowResult
from scheduler.requests.acceptance import accept
from scheduler.requests.request import make_choices, make_group

EOS = 0
TOKEN_BYTES = [b"", b"one", b" two", b"?\n", b".", b"\n", b"ab", b"bc", "é".encode()[:1], "é".encode()[1:]]
ONE, TWO, ASK, DOT, LINE, AB, BC, E_1, E_2 = range(1, 10)


def ending(token_ids: list[int], per_step: int, **fields: Any) -> tuple[int, Finish | None, str]:
    """How many tokens were taken, the end, and the text it leaves."""
    sampling = SamplingParams(**{"max_tokens": 50, **fields})
    message = GenerateRequest(request_id="r", prompt_token_ids=[1, 2], sampling=sampling)
    group = make_group(b"c", message, seed=0, eos_token_ids=(EOS,), max_total_tokens=100)
    (request,) = make_choices(group, 0)
    for start in range(0, len(token_ids), per_step):
        finish = accept(request, RowResult(token_ids=token_ids[start : start + per_step]), TOKEN_BYTES)
        if finish is not None:
            break
    text = b"".join(TOKEN_BYTES[token_id] for token_id in request.token_ids[2:])
    if finish is not None and finish.num_bytes is not None:
        text = text[: finish.num_bytes]
    return request.num_output, finish, text.decode("utf-8", "replace")


INCLUDED = {"include_stop_str_in_output": True}
# Fields, tokens that the model would go on with, then: tokens taken, finish reason, stop reason, text.
TABLE: list[tuple[dict[str, Any], list[int], int, str | None, str | int | None, str]] = [
    ({}, [ONE, TWO], 2, None, None, "one two"),
    ({"max_tokens": 2}, [ONE, TWO, DOT], 2, "length", None, "one two"),
    # the end of the text
    ({}, [ONE, EOS, TWO], 2, "stop", None, "one"),
    (INCLUDED, [ONE, EOS, TWO], 2, "stop", None, "one"),
    ({"max_tokens": 2}, [ONE, EOS], 2, "stop", None, "one"),
    ({"ignore_eos": True}, [ONE, EOS, TWO], 3, None, None, "one two"),
    ({"ignore_eos": True, "stop_token_ids": (EOS,)}, [ONE, EOS, TWO], 2, "stop", EOS, "one"),
    ({"stop_token_ids": (EOS,)}, [ONE, EOS, TWO], 2, "stop", EOS, "one"),
    ({"min_tokens": 2}, [ONE, EOS, TWO], 2, "stop", None, "one"),
    ({"min_tokens": 3}, [ONE, EOS, TWO, EOS], 4, "stop", None, "one two"),
    # stop ids
    ({"stop_token_ids": (DOT,)}, [ONE, DOT, TWO], 2, "stop", DOT, "one"),
    ({"stop_token_ids": (DOT,), **INCLUDED}, [ONE, DOT, TWO], 2, "stop", DOT, "one."),
    ({"stop_token_ids": (DOT,), "max_tokens": 2}, [ONE, DOT], 2, "stop", DOT, "one"),
    ({"stop_token_ids": (DOT,), "min_tokens": 3}, [ONE, DOT, DOT, TWO], 3, "stop", DOT, "one."),
    ({"stop_token_ids": (DOT,), "min_tokens": 2, "max_tokens": 2}, [DOT, ONE], 2, "length", None, ".one"),
    # stop strings
    ({"stop": (b".",)}, [ONE, DOT, TWO], 2, "stop", ".", "one"),
    ({"stop": (b".",), **INCLUDED}, [ONE, DOT, TWO], 2, "stop", ".", "one."),
    ({"stop": (b".",), "max_tokens": 2}, [ONE, DOT], 2, "stop", ".", "one"),
    ({"stop": (b".",), "min_tokens": 3}, [DOT, DOT, DOT, ONE], 3, "stop", ".", ".."),
    ({"stop": (b".",), "min_tokens": 3, **INCLUDED}, [DOT, DOT, DOT, ONE], 3, "stop", ".", "..."),
    ({"stop": (b".",), "min_tokens": 2, "max_tokens": 2}, [DOT, ONE], 2, "length", None, ".one"),
    ({"stop": (b"\n",)}, [ONE, ASK, TWO], 2, "stop", "\n", "one?"),  # text and stop string in one token
    ({"stop": (b"\n",), **INCLUDED}, [ONE, ASK, TWO], 2, "stop", "\n", "one?\n"),
    ({"stop": (b"e t",)}, [ONE, TWO, DOT], 2, "stop", "e t", "on"),  # over the border of two tokens
    ({"stop": (b"e t",), **INCLUDED}, [ONE, TWO, DOT], 2, "stop", "e t", "one t"),
    ({"stop": (b"e t",), "min_tokens": 2}, [ONE, TWO, DOT], 2, "stop", "e t", "on"),
    ({"stop": (b"bc", b"abbc")}, [AB, BC, DOT], 2, "stop", "abbc", ""),  # complete at one byte: the longest
    ({"stop": (b"bb", b"abbc")}, [AB, BC, DOT], 2, "stop", "bb", "a"),  # complete first
    ({"stop": ("é".encode(),)}, [ONE, E_1, E_2, DOT], 3, "stop", "é", "one"),  # inside a character's bytes
    ({"stop": (b"two",), "max_tokens": 1}, [ONE], 1, "length", None, "one"),
    # several at once: an end of text wins over a stop string, the first token that ends over a later one
    ({"stop": (b".",), "stop_token_ids": (DOT,)}, [ONE, DOT], 2, "stop", DOT, "one"),
    ({"stop": (b"\n",), "stop_token_ids": (ASK,), **INCLUDED}, [ONE, ASK], 2, "stop", ASK, "one?\n"),
    ({"stop": (b"two",), "stop_token_ids": (DOT,)}, [ONE, TWO, DOT], 2, "stop", "two", "one "),
    ({"stop": (b".",), "stop_token_ids": (TWO,)}, [ONE, TWO, DOT], 2, "stop", TWO, "one"),
    ({"stop": (b".",), "stop_token_ids": (TWO,), "min_tokens": 3}, [DOT, TWO, EOS, EOS], 3, "stop", None, ". two"),
]


@pytest.mark.parametrize("per_step", [1, 2, 9], ids=["plain", "pairs", "all at once"])
@pytest.mark.parametrize("case", TABLE, ids=[f"{index}" for index in range(len(TABLE))])
def test_an_answer_ends_where_and_as_the_table_says(case: tuple[Any, ...], per_step: int) -> None:
    fields, token_ids, num_tokens, reason, stop_reason, text = case
    taken, finish, shown = ending(token_ids, per_step, **fields)
    assert taken == num_tokens
    assert shown == text
    assert (None if finish is None else finish.reason) == reason
    assert (None if finish is None else finish.stop_reason) == stop_reason
    if finish is not None:
        assert finish.usage.completion_tokens == num_tokens
