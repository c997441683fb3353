"""From a specification to a fresh grammar object: caches, one compile for identical specifications, the pool."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from cachetools import LRUCache

from constrained.compile.disk_cache import DiskCache, package_fingerprint
from constrained.compile.protocol import CompileResult
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, InvalidGrammarObject, check_backend_name
from constrained.environment import GrammarEnvironment
from constrained.errors import (
    GrammarError,
    GrammarServiceUnavailableError,
    GrammarTimeoutError,
    GrammarTooMuchWorkError,
    InvalidGrammarError,
    UnknownBackendError,
    unforeseen,
)
from constrained.spec import GrammarSpec
from constrained.stats import GrammarMetrics, GrammarStats

logger = logging.getLogger(__name__)

_ENTRY_BYTES = 2048


class Compiler(Protocol):
    """What compiles: :class:`constrained.compile.pool.CompilePool`, or a fake."""

    def submit(self, spec: GrammarSpec) -> Future[CompileResult]: ...

    def note_step(self) -> None: ...

    def shutdown(self) -> None: ...


class BackendSource(Protocol):
    """Backends by name (:class:`constrained.engines.auto.AutoGrammarBackend`), to read results back with."""

    def backend(self, name: str) -> BaseGrammarBackend: ...


@dataclass(frozen=True)
class _Entry:
    """A cached grammar in its start state, or a refusal that would be the same again."""

    grammar: BaseGrammarObject
    stats: GrammarStats
    size_bytes: int


@dataclass(eq=False)
class _Flight:
    """One compile and everyone who waits for it."""

    spec: GrammarSpec
    waiters: list[Future[BaseGrammarObject]] = field(default_factory=list)
    compile: Future[CompileResult] | None = None
    is_over: bool = False


class CompileService:
    """Thread safe; :meth:`get` never waits.

    Parameters
    ----------
    environment, backends, compiler
        What to compile for, what reads results back, and what compiles.
    metrics
        Counts hits, joins and cancellations.
    """

    def __init__(
        self,
        environment: GrammarEnvironment,
        backends: BackendSource,
        compiler: Compiler,
        metrics: GrammarMetrics | None = None,
    ) -> None:
        config = environment.config
        self.metrics = metrics or GrammarMetrics()
        self._environment = environment
        self._backends = backends
        self._compiler = compiler
        self._lock = threading.Lock()
        self._cache: LRUCache[GrammarSpec, _Entry] = LRUCache(config.cache_bytes, getsizeof=lambda e: e.size_bytes)
        self._flights: dict[GrammarSpec, _Flight] = {}
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="grammar-load")
        self._disk: DiskCache | None = None
        if config.disk_cache is not None:
            self._disk = DiskCache(config.disk_cache, config.disk_cache_bytes, _fingerprint(environment))

    def get(self, spec: GrammarSpec) -> tuple[BaseGrammarObject | Future[BaseGrammarObject], bool]:
        """A copy in its start state and ``True``, or a future of one and ``False``.

        The future's result may be an :class:`InvalidGrammarObject`; it never raises. Cancelling it leaves the compile.
        """
        self.metrics.add("grammar_requests_total")
        refusal = self._refusal(spec)
        if refusal is not None:
            return InvalidGrammarObject(self._environment, refusal), True
        with self._lock:
            entry = self._cache.get(spec)
            if entry is not None and entry.grammar.is_spent:
                del self._cache[spec]
                self._note_size()
            elif entry is not None:
                self.metrics.add("grammar_cache_hits_total")
                return self._fresh(entry, is_cache_hit=True), True
            future: Future[BaseGrammarObject] = Future()
            flight = self._flights.get(spec)
            is_first = flight is None
            if flight is None:
                self.metrics.add("grammar_cache_misses_total")
                flight = self._flights[spec] = _Flight(spec)
            else:
                self.metrics.add("grammar_single_flight_joins_total")
            flight.waiters.append(future)
        if is_first and self._disk is None:
            self._guarded(flight, self._take_off, flight)
        elif is_first:
            self._threads.submit(self._guarded, flight, self._take_off, flight)
        future.add_done_callback(lambda _: self._leave(flight, future))
        return future, False

    def _refusal(self, spec: GrammarSpec) -> InvalidGrammarError | None:
        """What can be told without a compiler."""
        limit = self._environment.config.max_spec_bytes
        try:
            if spec.backend is not None:
                check_backend_name(spec.backend)
        except UnknownBackendError as error:
            return error
        try:
            num_bytes = len(spec.value.encode())
        except UnicodeEncodeError as error:
            return InvalidGrammarError(f"the constraint is not valid Unicode: {error.reason} at {error.start}")
        if num_bytes > limit:
            return InvalidGrammarError(f"the constraint is longer than {limit} bytes; make it shorter")
        return None

    def note_step(self) -> None:
        """A decode step was made while a request waits for its grammar."""
        self._compiler.note_step()

    def set_cache(self, spec: GrammarSpec, grammar: BaseGrammarObject) -> None:
        with self._lock:
            self._store(spec, _Entry(grammar, GrammarStats(), _entry_bytes(spec, grammar)))

    def reset(self) -> None:
        with self._lock:
            self._cache.clear()
            self._note_size()

    def shutdown(self) -> None:
        self._compiler.shutdown()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            flights = list(self._flights.values())
        error = GrammarServiceUnavailableError("the server is shutting down")
        for flight in flights:
            self._land(flight, _Entry(InvalidGrammarObject(self._environment, error), GrammarStats(), 0), keep=False)

    # the life of a flight; all but _leave run in threads

    def _guarded(self, flight: _Flight, work: Callable[..., None], *arguments: object) -> None:
        """Do a part of the work; whatever is raised becomes the waiters' error, since nobody looks at a thread's."""
        try:
            work(*arguments)
        except GrammarError as error:
            self._refuse(flight, error)
        except BaseException as error:  # a panic inside a Rust engine is no Exception
            self._refuse(flight, unforeseen(error))

    def _take_off(self, flight: _Flight) -> None:
        result = None if self._disk is None else self._disk.get(flight.spec)
        if result is not None:
            self.metrics.add("grammar_disk_cache_hits_total")
            self._load(flight, result, from_disk=True)
        else:
            self._compile(flight)

    def _compile(self, flight: _Flight) -> None:
        with self._lock:
            if flight.is_over:
                return
            flight.compile = compile_future = self._compiler.submit(flight.spec)
        compile_future.add_done_callback(lambda _: self._hand_over(flight, compile_future))

    def _hand_over(self, flight: _Flight, compile_future: Future[CompileResult]) -> None:
        """From the pool's thread to one that may take its time."""
        if compile_future.cancelled():
            return
        try:
            self._threads.submit(self._guarded, flight, self._unpack, flight, compile_future)
        except RuntimeError:
            return  # shutdown() answers every waiter

    def _unpack(self, flight: _Flight, compile_future: Future[CompileResult]) -> None:
        self._load(flight, compile_future.result(), from_disk=False)

    def _load(self, flight: _Flight, result: CompileResult, *, from_disk: bool) -> None:
        started = time.perf_counter()
        try:
            grammar = self._backends.backend(result.backend).deserialize(result.payload)
            grammar.copy()  # pays what a first copy builds
        except BaseException as error:
            if not from_disk or self._disk is None:
                raise
            logger.warning("a grammar of the disk cache cannot be read back and is compiled again: %s", error)
            self._disk.remove(flight.spec)
            self._compile(flight)
            return
        stats = GrammarStats(
            kind=flight.spec.kind,
            backend=result.backend,
            compile_seconds=(0.0 if from_disk else result.compile_seconds) + time.perf_counter() - started,
            size_bytes=grammar.size_bytes,
            unenforced=tuple(pointer for pointer, _ in result.notices),
        )
        self._land(flight, _Entry(grammar, stats, _entry_bytes(flight.spec, grammar)), keep=True)
        if self._disk is not None and not from_disk:
            try:
                self._disk.put(flight.spec, result)
            except OSError as error:
                logger.warning("cannot write to the grammar cache %s: %s", self._disk.folder, error)

    def _refuse(self, flight: _Flight, error: GrammarError) -> None:
        is_late = isinstance(error, (GrammarTimeoutError, GrammarTooMuchWorkError))
        self.metrics.add("grammar_timeouts_total" if is_late else "grammar_invalid_total")
        grammar = InvalidGrammarObject(self._environment, error)
        stats = GrammarStats(kind=flight.spec.kind)
        # Only what would fail the same way again is kept: a time-out or a crash may be the moment's fault.
        self._land(flight, _Entry(grammar, stats, _entry_bytes(flight.spec, grammar)), keep=error.is_permanent)

    def _land(self, flight: _Flight, entry: _Entry, *, keep: bool) -> None:
        with self._lock:
            if flight.is_over:
                return
            self._finish(flight)
            if keep:
                self._store(flight.spec, entry)
            waiters = list(flight.waiters)
        for number, waiter in enumerate(waiters):
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(self._fresh(entry, is_cache_hit=False, joined=number > 0))

    def _leave(self, flight: _Flight, future: Future[BaseGrammarObject]) -> None:
        if not future.cancelled():
            return
        with self._lock:
            flight.waiters.remove(future)
            if flight.waiters or flight.is_over:
                return
            self._finish(flight)
            compile_future = flight.compile
        if compile_future is not None:
            compile_future.cancel()

    def _finish(self, flight: _Flight) -> None:
        flight.is_over = True
        if self._flights.get(flight.spec) is flight:
            del self._flights[flight.spec]

    def _fresh(self, entry: _Entry, *, is_cache_hit: bool, joined: bool = False) -> BaseGrammarObject:
        """A copy of its own for one request; one that cannot be made is that request's error."""
        try:
            grammar = entry.grammar.copy()
        except BaseException as error:
            return InvalidGrammarObject(self._environment, unforeseen(error))
        grammar.grammar_stats = replace(
            entry.stats,
            compile_seconds=0.0 if is_cache_hit else entry.stats.compile_seconds,
            is_cache_hit=is_cache_hit,
            joined_compile=joined,
        )
        return grammar

    def _store(self, spec: GrammarSpec, entry: _Entry) -> None:
        if entry.size_bytes > self._cache.maxsize:
            return
        self._cache.pop(spec, None)
        num_others = len(self._cache)
        self._cache[spec] = entry
        self.metrics.add("grammar_cache_evictions_total", num_others + 1 - len(self._cache))
        self._note_size()

    def _note_size(self) -> None:
        self.metrics.cache_bytes = int(self._cache.currsize)


def _entry_bytes(spec: GrammarSpec, grammar: BaseGrammarObject) -> int:
    return _ENTRY_BYTES + 4 * len(spec.value) + grammar.size_bytes


def _fingerprint(environment: GrammarEnvironment) -> str:
    """Everything but the specification that a compiled grammar depends on."""
    from constrained.engines.auto import BUILT_IN_BACKENDS, AutoGrammarBackend

    backends = AutoGrammarBackend(environment)
    parts = [
        environment.fingerprint,
        package_fingerprint(),
        environment.config.backend,
        environment.config.json_whitespace,
        str(environment.config.json_number_digits),
        environment.config.json_undeclared_properties,
        *environment.config.plugins,
        *(backends.backend(name).version for name in BUILT_IN_BACKENDS),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
