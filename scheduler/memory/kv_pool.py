"""The KV page pool: which pages are free, referred to by requests, or kept by the prefix cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable


class KvPool:
    """Pages ``0 .. num_pages - 1`` of ``page_size`` tokens each.

    A page is *free*, or *referenced* (by that many requests), or *idle*: referenced by none but kept by the prefix
    cache. References are given back at once only when nothing is in flight: while a step is launched and not
    collected, its kernels may still read and write the pages, so :meth:`release` waits for the newest such step.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.num_idle = 0
        self.on_idle: Callable[[int], None] = lambda page: None
        """Called when the last reference to a cached page is given back."""
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = [0] * num_pages
        self._is_cached = bytearray(num_pages)
        self._retiring: deque[list[int]] = deque()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Pages that can be had now, idle ones by evicting them from the prefix cache."""
        return len(self._free) + self.num_idle

    @property
    def num_referenced(self) -> int:
        return self.num_pages - self.num_available

    @property
    def num_retiring(self) -> int:
        """References that are given back when the steps in flight are collected."""
        return sum(map(len, self._retiring))

    def num_pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def references(self, page: int) -> int:
        return self._references[page]

    def is_cached(self, page: int) -> bool:
        return bool(self._is_cached[page])

    def take(self, count: int) -> list[int]:
        """``count`` free pages, each with one reference. The caller has seen that there are as many."""
        if count > len(self._free):
            raise RuntimeError(f"{count} pages were taken of {len(self._free)} free ones")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def acquire(self, pages: Iterable[int]) -> None:
        """One more reference to pages that are referenced or idle."""
        for page in pages:
            if self._references[page] == 0:
                if not self._is_cached[page]:
                    raise RuntimeError(f"page {page} is free and cannot be shared")
                self.num_idle -= 1
            self._references[page] += 1

    def release(self, pages: list[int]) -> None:
        """Give back one reference to each page, as soon as no launched step refers to them."""
        if self._retiring:
            self._retiring[-1].extend(pages)
        else:
            self._drop(pages)

    def step_launched(self) -> None:
        self._retiring.append([])

    def step_collected(self) -> None:
        """The oldest launched step is over."""
        self._drop(self._retiring.popleft())

    def keep_in_cache(self, page: int) -> None:
        """The prefix cache keeps this referenced page when its references are gone."""
        self._is_cached[page] = 1

    def drop_from_cache(self, page: int) -> None:
        """The prefix cache lets go of an idle page, which becomes free."""
        if self._references[page] or not self._is_cached[page]:
            raise RuntimeError(f"page {page} is not idle and cannot be evicted")
        self._is_cached[page] = 0
        self.num_idle -= 1
        self._free.append(page)

    def _drop(self, pages: list[int]) -> None:
        for page in pages:
            references = self._references[page] - 1
            if references < 0:
                raise RuntimeError(f"page {page} was given back twice")
            self._references[page] = references
            if references == 0:
                if self._is_cached[page]:
                    self.num_idle += 1
                    self.on_idle(page)
                else:
                    self._free.append(page)
