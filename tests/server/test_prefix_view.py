"""What an HTTP process remembers of the prompts that it gave to a group."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.engine.prefix_view import BLOCK_TOKENS, PrefixView, block_keys

B = BLOCK_TOKENS
token_ids = st.lists(st.integers(0, 3), max_size=6 * B)


def shared_blocks(first: list[int], second: list[int]) -> int:
    blocks = 0
    while (blocks + 1) * B <= min(len(first), len(second)):
        if first[: (blocks + 1) * B] != second[: (blocks + 1) * B]:
            break
        blocks += 1
    return blocks


@given(st.lists(token_ids, max_size=6), token_ids)
def test_the_match_is_the_longest_beginning_shared_with_any_prompt(prompts: list[list[int]], asked: list[int]) -> None:
    view = PrefixView(1 << 20)
    for prompt in prompts:
        view.add(block_keys(prompt))
    expected = max((shared_blocks(prompt, asked) for prompt in prompts), default=0)
    assert view.matched_tokens(block_keys(asked)) == expected * B


@given(st.lists(token_ids, max_size=20), st.integers(0, 8))
def test_it_never_remembers_more_than_the_group_holds(prompts: list[list[int]], num_blocks: int) -> None:
    view = PrefixView(num_blocks * B)
    for prompt in prompts:
        view.add(block_keys(prompt))
        assert len(view) <= num_blocks


def test_the_longest_unused_is_forgotten_first_and_from_its_end() -> None:
    view = PrefixView(5 * B)
    old, new = [1] * 3 * B, [2] * 3 * B
    view.add(block_keys(old))
    view.add(block_keys(new))
    assert view.matched_tokens(block_keys(old)) == 2 * B
    assert view.matched_tokens(block_keys(new)) == 3 * B
    view.add(block_keys([1] * B))  # used again
    view.add(block_keys([3] * 2 * B))
    assert view.matched_tokens(block_keys(old)) == B


def test_a_beginning_of_a_block_is_no_match() -> None:
    view = PrefixView(1 << 20)
    view.add(block_keys([7] * (B - 1)))
    assert len(view) == 0
    view.add(block_keys([7] * B))
    assert view.matched_tokens(block_keys([7] * (B - 1))) == 0
    view.clear()
    assert view.matched_tokens(block_keys([7] * B)) == 0
