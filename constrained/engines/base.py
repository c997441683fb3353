"""The interface of the grammar layer: what compiles grammars, and the registry of backends.

A request's live state, :class:`BaseGrammarObject`, is in :mod:`constrained.engines.grammar_object` and public here too.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from constrained.engines.grammar_object import BaseGrammarObject, InvalidGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError, UnknownBackendError, UnsupportedGrammarError
from constrained.spec import GrammarSpec, ReasoningSpec
from constrained.stats import GrammarMetrics

if TYPE_CHECKING:
    from constrained.compile.service import Compiler, CompileService

__all__ = [
    "GRAMMAR_BACKEND_REGISTRY",
    "BaseGrammarBackend",
    "BaseGrammarObject",
    "GrammarBackendFactory",
    "InvalidGrammarObject",
    "check_backend_name",
    "create_grammar_backend",
    "refuse",
    "register_grammar_backend",
]


class BaseGrammarBackend(ABC):
    """Compiles specifications into grammar objects.

    One is built in the scheduler, and one in every compile worker: there ``dispatch_*`` runs and :meth:`serialize`
    packs the result; in the scheduler :meth:`deserialize` unpacks it, in a thread, and copies are handed out.
    """

    name: str
    counts_work = False
    """Whether the engine itself bounds the work of a mask by a count, so that its verdict is the same on every run."""

    def __init__(self, environment: GrammarEnvironment) -> None:
        self.environment = environment
        self.service: CompileService | None = None
        """Compiles in workers and caches; set by :func:`create_grammar_backend`, absent inside a worker."""

    # compiling, in a worker: the value is what constrained.preparation prepared; raises GrammarError

    @abstractmethod
    def dispatch_json(self, value: str) -> BaseGrammarObject: ...

    @abstractmethod
    def dispatch_regex(self, value: str) -> BaseGrammarObject: ...

    @abstractmethod
    def dispatch_ebnf(self, value: str) -> BaseGrammarObject: ...

    @abstractmethod
    def dispatch_structural_tag(self, value: str) -> BaseGrammarObject: ...

    def _init_value_dispatch(self, key: GrammarSpec) -> BaseGrammarObject:
        """Compile here and now; an error becomes an :class:`InvalidGrammarObject`."""
        dispatch = {
            "json_schema": self.dispatch_json,
            "regex": self.dispatch_regex,
            "ebnf": self.dispatch_ebnf,
            "structural_tag": self.dispatch_structural_tag,
        }[key.kind]
        try:
            return dispatch(key.value)
        except GrammarError as error:
            return InvalidGrammarObject(self.environment, error)

    def warm(self) -> None:  # noqa: B027
        """Build what every compile needs, before the first one."""

    def compile_common_rules(self) -> None:  # noqa: B027
        """Compile what many grammars have in common and an engine keeps; may take a second."""

    def parts_to_try(self, compiled: BaseGrammarObject) -> Iterable[BaseGrammarObject]:
        """Parts that may cost much and that a random walk through the whole seldom reaches: they are tried alone."""
        return ()

    # crossing from a worker to the scheduler

    @abstractmethod
    def serialize(self, compiled: BaseGrammarObject) -> bytes:
        """A compiled grammar in a format that is safe to read back: no pickle."""

    @abstractmethod
    def deserialize(self, payload: bytes) -> BaseGrammarObject:
        """Undo :meth:`serialize`. Called in a thread."""

    @property
    def version(self) -> str:
        """Changes whenever a payload of another version must not be read."""
        return "0"

    # serving, in the scheduler

    def get_cached_or_future_value(
        self, key: GrammarSpec, require_reasoning: ReasoningSpec | None = None
    ) -> tuple[BaseGrammarObject | Future[BaseGrammarObject], bool]:
        """A fresh copy from the cache and ``True``, or the future of one and ``False``.

        Cancelling the future leaves the compile; the last one to leave ends it.
        """
        if self.service is None:
            raise RuntimeError("this backend compiles only; create_grammar_backend() builds one that serves")
        return self.service.get(key)

    def set_cache(self, key: GrammarSpec, value: BaseGrammarObject) -> None:
        """Put a compiled grammar into the memory cache."""
        if self.service is not None:
            self.service.set_cache(key, value)

    def reset(self) -> None:
        """Forget every cached grammar; compiles that run go on."""
        if self.service is not None:
            self.service.reset()

    def note_step(self) -> None:
        """A decode step was made while a request waits for its grammar: slow compiles leave it more of the machine."""
        if self.service is not None:
            self.service.note_step()

    def shutdown(self) -> None:
        """End the compile workers."""
        if self.service is not None:
            self.service.shutdown()


GrammarBackendFactory = Callable[[GrammarEnvironment], BaseGrammarBackend]

GRAMMAR_BACKEND_REGISTRY: dict[str, GrammarBackendFactory] = {}
"""Factories by backend name. Compile workers have the entries of the modules in ``GrammarConfig.plugins`` too."""


def register_grammar_backend(name: str, factory: GrammarBackendFactory) -> None:
    """Make ``name`` a backend that a server or a request may ask for.

    Compile workers are separate processes: name the module that calls this in ``GrammarConfig.plugins``.
    """
    if name in ("auto", "none"):
        raise ValueError(f"{name!r} is not a name for a backend")
    GRAMMAR_BACKEND_REGISTRY[name] = factory


def check_backend_name(name: str) -> None:
    """Raise :class:`UnknownBackendError` unless a server or a request may ask for this backend."""
    if name not in ("auto", "none", *GRAMMAR_BACKEND_REGISTRY):
        names = ", ".join(["auto", *GRAMMAR_BACKEND_REGISTRY])
        raise UnknownBackendError(f"unknown grammar backend {name!r}; there are: {names}")


def create_grammar_backend(
    environment: GrammarEnvironment,
    *,
    metrics: GrammarMetrics | None = None,
    compiler: Compiler | None = None,
) -> BaseGrammarBackend | None:
    """The backend that a server's :class:`~constrained.queue.manager.GrammarManager` works with.

    Parameters
    ----------
    environment
        Vocabulary, width and configuration; ``config.backend`` names the engine, or ``auto``.
    metrics
        Counters to add to.
    compiler
        Instead of a pool of compile processes; for tests.

    Returns
    -------
    backend
        ``None`` for the backend ``none``: constrained requests are refused.

    Raises
    ------
    UnknownBackendError
        The configuration names a backend that nothing registered.
    """
    from constrained.compile.pool import CompilePool
    from constrained.compile.service import CompileService
    from constrained.engines.auto import AutoGrammarBackend
    from constrained.thinking.reasoner_backend import ReasonerGrammarBackend

    if environment.config.backend == "none":
        return None
    backend = AutoGrammarBackend(environment)
    metrics = metrics or GrammarMetrics()
    if compiler is None:
        compiler = CompilePool(environment, metrics)
        backend.warm()  # while the compile processes start; a first request would hold up the loop with it
        # Not in the idle class: a thread that is not run for long while it holds the interpreter lock stops all others.
        # No daemon: one that comes back from xgrammar while the interpreter is torn down aborts the process.
        threading.Thread(target=backend.compile_common_rules, name="grammar-warm").start()
    backend.service = CompileService(environment, backend, compiler, metrics)
    return ReasonerGrammarBackend(backend)


def refuse(backend: str, what: str) -> UnsupportedGrammarError:
    """The error of a backend that cannot take a kind of specification."""
    return UnsupportedGrammarError(f"the {backend} grammar backend does not support {what}")
