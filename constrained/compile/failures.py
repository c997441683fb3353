"""What a client is told when compiling its grammar came to nothing."""

from __future__ import annotations

import logging
import signal

from constrained.compile.protocol import CompileRefusal, Exited
from constrained.config import GrammarConfig
from constrained.errors import (
    GrammarCompilerCrashedError,
    GrammarDisplacedError,
    GrammarEngineError,
    GrammarError,
    GrammarTimeoutError,
    GrammarTooLargeError,
    GrammarTooMuchWorkError,
    InvalidGrammarError,
)

logger = logging.getLogger(__name__)

_SIGNAL_NAMES = {one.value: one.name for one in signal.Signals}  # real-time signals have none


def refused(refusal: CompileRefusal, config: GrammarConfig) -> GrammarError:
    """By the compile process itself."""
    if refusal.is_memory:
        return too_large(config)
    if refusal.fault is not None:
        logger.error("a request ends because compiling its grammar failed\n%s", refusal.fault)
        return GrammarEngineError(f"the server failed to make this grammar ({refusal.message})")
    kind = InvalidGrammarError if refusal.is_permanent else GrammarError
    return kind(refusal.message, pointer=refusal.pointer, code=refusal.code)


def crashed(exited: Exited, config: GrammarConfig) -> GrammarError:
    """The process ended without an answer."""
    if exited.grown_bytes > config.compile_memory_bytes // 2:
        return too_large(config)
    name = _SIGNAL_NAMES.get(exited.signal, f"signal {exited.signal}") if exited.signal else "exit"
    return GrammarCompilerCrashedError(
        f"compiling this grammar ended its process ({name}): it is too complex for the grammar engine, or needs "
        f"more than {config.compile_memory_bytes >> 20} MiB; simplify it"
    )


def too_large(config: GrammarConfig) -> GrammarError:
    return GrammarTooLargeError(
        f"compiling this grammar needs more than {config.compile_memory_bytes >> 20} MiB; "
        "simplify it (fewer or smaller repetitions, enums and alternatives)"
    )


def displaced(seconds: float) -> GrammarError:
    return GrammarDisplacedError(
        f"compiling it was ended after {seconds:.1f} s because every compile process was busy with slow grammars and "
        "other requests waited; try again later, or simplify it"
    )


def timed_out(seconds: float) -> GrammarError:
    return GrammarTimeoutError(
        f"the grammar was not ready within {seconds:g} s because the server is busy; try again later"
    )


def too_much_work(seconds: float) -> GrammarError:
    return GrammarTooMuchWorkError(
        f"compiling this grammar takes more than {seconds:.3g} s of a processor; simplify the schema or grammar, or "
        "raise --grammar-timeout"
    )
