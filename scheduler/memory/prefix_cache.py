"""The prefix cache: a radix tree whose edges are whole KV pages.

A node stands for one page, reached from the root by the tokens of all pages before it. Only accepted and computed
tokens enter, so nothing is ever rolled back here. A request that uses a node's page uses those of all its ancestors,
so pages nobody refers to hang below the ones in use and eviction takes leaves only, least recently used first.
Time is a counter: many ranks that see the same calls evict the same pages.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from scheduler.memory.kv_pool import KvPool

PageKey = tuple[int, ...]


class CacheNode:
    """One cached page. ``page`` is -1 for the root."""

    __slots__ = ("children", "depth", "is_live", "key", "last_used", "page", "parent")

    def __init__(self, parent: CacheNode | None, key: PageKey, page: int) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.children: dict[PageKey, CacheNode] = {}
        self.depth: int = 0 if parent is None else parent.depth + 1
        """Pages from the root to here, this one included."""
        self.last_used = 0
        self.is_live = True
        """False once evicted."""


class PrefixCache:
    def __init__(self, pool: KvPool) -> None:
        self.root = CacheNode(None, (), -1)
        self._pool = pool
        self._nodes: dict[int, CacheNode] = {}
        self._clock = 0
        self._leaves: list[tuple[int, int, CacheNode]] = []
        """Heap of (last use, page, node); entries that no longer hold are skipped when they surface."""
        pool.on_idle = self._page_is_idle

    @property
    def num_pages(self) -> int:
        return len(self._nodes)

    def match(self, token_ids: Sequence[int], max_pages: int, start: CacheNode | None = None) -> CacheNode:
        """The deepest node of at most ``max_pages`` pages that ``token_ids`` pass through.

        ``start`` is an earlier answer for the same tokens: the search goes on from there while it is cached.
        """
        node = start if start is not None and start.is_live and start.depth <= max_pages else self.root
        size = self._pool.page_size
        while node.depth < max_pages:
            position = node.depth * size
            child = node.children.get(tuple(token_ids[position : position + size]))
            if child is None:
                break
            node = child
        return node

    def num_idle_to(self, node: CacheNode) -> int:
        """Pages from the root to ``node`` that nobody refers to."""
        count = 0
        while node.parent is not None and self._pool.references(node.page) == 0:
            count += 1
            node = node.parent
        return count

    def acquire(self, node: CacheNode) -> list[int]:
        """Refer to the pages from the root to ``node``; returns them in that order."""
        pages: list[int] = []
        self._clock += 1
        while node.parent is not None:
            node.last_used = self._clock
            pages.append(node.page)
            node = node.parent
        pages.reverse()
        self._pool.acquire(pages)
        return pages

    def insert(self, parent: CacheNode, key: PageKey, page: int) -> CacheNode:
        """The node for ``key`` below ``parent``: a new one for ``page``, or the one that is there.

        The caller refers to ``page`` and to ``parent``. When the returned node has another page, its KV is the same:
        the caller may refer to that one (:meth:`share`) and give its own back.
        """
        node = parent.children.get(key)
        if node is None:
            node = CacheNode(parent, key, page)
            parent.children[key] = node
            self._nodes[page] = node
            self._pool.keep_in_cache(page)
        self._clock += 1
        node.last_used = self._clock
        return node

    def share(self, node: CacheNode) -> int:
        """One more reference to the page of ``node`` alone, for a caller that refers to its parent."""
        self._pool.acquire((node.page,))
        return node.page

    def evict(self, count: int) -> int:
        """Free up to ``count`` idle pages; returns how many were freed."""
        freed = 0
        while freed < count and self._leaves:
            last_used, _, node = heapq.heappop(self._leaves)
            if not self._is_evictable(node) or node.last_used != last_used:
                continue
            parent = node.parent
            if parent is None:
                raise RuntimeError("the root of the prefix cache is never evictable")
            del parent.children[node.key]
            del self._nodes[node.page]
            node.is_live = False
            self._pool.drop_from_cache(node.page)
            freed += 1
            if self._is_evictable(parent):
                self._push(parent)
        return freed

    def _page_is_idle(self, page: int) -> None:
        node = self._nodes[page]
        if not node.children:
            self._push(node)

    def _is_evictable(self, node: CacheNode) -> bool:
        return node.is_live and not node.children and node.page >= 0 and self._pool.references(node.page) == 0

    def _push(self, node: CacheNode) -> None:
        heapq.heappush(self._leaves, (node.last_used, node.page, node))
        if len(self._leaves) > 4 * len(self._nodes) + 64:
            live = {(n.last_used, n.page): n for _, _, n in self._leaves if self._is_evictable(n)}
            self._leaves = [(last_used, page, n) for (last_used, page), n in live.items()]
            heapq.heapify(self._leaves)
