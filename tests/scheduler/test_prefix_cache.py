"""The radix tree against a list of sequences, and the pool's bookkeeping."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.memory.kv_pool import KvPool
from scheduler.memory.prefix_cache import CacheNode, PrefixCache

SIZE = 2
NUM_PAGES = 12


class Holder:
    """What a request does with the tree, and nothing else."""

    def __init__(self, pool: KvPool, cache: PrefixCache, tokens: list[int]) -> None:
        self.pool, self.cache, self.tokens = pool, cache, tokens
        self.node = cache.match(tokens, len(tokens) // SIZE)
        self.matched = self.node.depth
        self.pages = cache.acquire(self.node)

    def compute_page(self) -> bool:
        index = self.node.depth
        if (index + 1) * SIZE > len(self.tokens) or not self.pool.num_available:
            return False
        if not self.pool.num_free:
            self.cache.evict(1)
        page = self.pool.take(1)[0]
        self.node = self.cache.insert(self.node, tuple(self.tokens[index * SIZE : (index + 1) * SIZE]), page)
        if self.node.page != page:
            self.pages.append(self.cache.share(self.node))
            self.pool.release([page])
        else:
            self.pages.append(page)
        return True


class Model:
    """By brute force: cached prefixes with the time of their last use."""

    def __init__(self) -> None:
        self.used: dict[tuple[int, ...], int] = {}
        self.clock = 0

    def touch(self, prefixes: list[tuple[int, ...]]) -> None:
        self.clock += 1
        for prefix in prefixes:
            self.used[prefix] = self.clock

    def longest(self, tokens: list[int]) -> int:
        depth = 0
        while (depth + 1) * SIZE <= len(tokens) and tuple(tokens[: (depth + 1) * SIZE]) in self.used:
            depth += 1
        return depth

    def evict(self, in_use: set[tuple[int, ...]]) -> None:
        leaves = [
            prefix
            for prefix in self.used
            if prefix not in in_use
            and not any(other != prefix and other[: len(prefix)] == prefix for other in self.used)
        ]
        del self.used[min(leaves, key=lambda prefix: self.used[prefix])]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_tree_matches_shares_and_evicts_like_a_list_of_prefixes(data: st.DataObject) -> None:
    pool = KvPool(NUM_PAGES, SIZE)
    cache = PrefixCache(pool)
    model = Model()
    holders: list[Holder] = []
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["new", "compute", "compute", "compute", "release", "evict"]))
        in_use = {tuple(h.tokens[: (d + 1) * SIZE]) for h in holders for d in range(h.node.depth)}
        if action == "new":
            tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=9))
            expected = model.longest(tokens)
            holder = Holder(pool, cache, tokens)
            assert holder.matched == expected
            model.touch([tuple(tokens[: (d + 1) * SIZE]) for d in range(expected)])
            holders.append(holder)
        elif action == "compute" and holders:
            holder = data.draw(st.sampled_from(holders))
            evicts = not pool.num_free
            if holder.compute_page():
                if evicts:
                    model.evict(in_use)
                model.touch([tuple(holder.tokens[: holder.node.depth * SIZE])])
        elif action == "release" and holders:
            holder = holders.pop(data.draw(st.integers(0, len(holders) - 1)))
            pool.release(holder.pages)
        elif action == "evict" and pool.num_idle:
            assert cache.evict(1) == 1
            model.evict(in_use)
        assert _prefixes(cache.root) == set(model.used)
        _check_pool(pool, cache, holders)
    for holder in holders:
        pool.release(holder.pages)
    cache.evict(NUM_PAGES)
    assert pool.num_free == NUM_PAGES


def _prefixes(node: CacheNode, prefix: tuple[int, ...] = ()) -> set[tuple[int, ...]]:
    found = set()
    for key, child in node.children.items():
        found.add(prefix + key)
        found |= _prefixes(child, prefix + key)
    return found


def _check_pool(pool: KvPool, cache: PrefixCache, holders: list[Holder]) -> None:
    references = [sum(page in holder.pages for holder in holders) for page in range(pool.num_pages)]
    assert references == [pool.references(page) for page in range(pool.num_pages)]
    idle = sum(references[page] == 0 and pool.is_cached(page) for page in range(pool.num_pages))
    assert idle == pool.num_idle
    assert pool.num_free == sum(references[p] == 0 and not pool.is_cached(p) for p in range(pool.num_pages))
    assert pool.num_referenced == sum(count > 0 for count in references)


def test_a_search_goes_on_from_its_last_answer_while_that_is_cached() -> None:
    pool = KvPool(4, SIZE)
    cache = PrefixCache(pool)
    tokens = [1, 2, 3, 4, 5, 6]
    holder = Holder(pool, cache, tokens)
    holder.compute_page()
    first = cache.match(tokens, 3)
    holder.compute_page()
    assert cache.match(tokens, 3, first).depth == 2
    pool.release(holder.pages)
    cache.evict(4)
    assert cache.match(tokens, 3, first) is cache.root


def test_pages_wait_for_the_newest_launched_step() -> None:
    pool = KvPool(4, SIZE)
    pages = pool.take(3)
    pool.step_launched()
    pool.release(pages[:1])
    pool.step_launched()
    pool.release(pages[1:])
    assert (pool.num_free, pool.num_retiring) == (1, 3)
    pool.step_collected()
    assert (pool.num_free, pool.num_retiring) == (2, 2)
    pool.step_collected()
    assert (pool.num_free, pool.num_retiring) == (4, 0)


def test_wrong_bookkeeping_is_an_error_at_once() -> None:
    pool = KvPool(2, SIZE)
    pages = pool.take(1)
    with pytest.raises(RuntimeError, match="2 pages were taken"):
        pool.take(2)
    pool.release(pages)
    with pytest.raises(RuntimeError, match="given back twice"):
        pool.release(pages)
    with pytest.raises(RuntimeError, match="is free"):
        pool.acquire(pages)
    with pytest.raises(RuntimeError, match="cannot be evicted"):
        pool.drop_from_cache(pages[0])
