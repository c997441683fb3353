"""One compile process: takes specifications from its socket, one at a time, under limits it cannot lift."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
import traceback

from constrained.compile.protocol import (
    HEADER_BYTES,
    CompileRefusal,
    CompileReply,
    CompileResult,
    decode_job,
    frame,
    frame_length,
)
from constrained.compile.walk import walk
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject
from constrained.errors import GrammarError
from constrained.spec import GrammarSpec

_SEPARATORS = b',":'
"""A walk that prefers them reaches the last name of a list, and what may follow it, within a few steps."""


def compile_and_walk(backend: AutoGrammarBackend, spec: GrammarSpec) -> CompileReply:
    """Compile, try out and pack."""
    started = time.perf_counter()
    try:
        compiled = backend.compile(spec, _try_out)
        payload = backend.backend(compiled.backend).serialize(compiled.grammar)
    except GrammarError as error:
        return CompileRefusal(error.message, error.pointer, error.is_permanent, error.code)
    except MemoryError:
        return CompileRefusal("", None, False, is_memory=True)
    except RecursionError:
        return CompileRefusal("the specification is nested too deeply", None, True)
    except Exception as error:
        if "bad_alloc" in str(error):  # C++ memory errors cross as RuntimeError
            return CompileRefusal("", None, False, is_memory=True)
        return CompileRefusal(type(error).__name__, None, False, fault=traceback.format_exc(limit=-8)[-4000:])
    return CompileResult(
        backend=compiled.backend,
        payload=payload,
        size_bytes=compiled.grammar.size_bytes,
        compile_seconds=time.perf_counter() - started,
        notices=compiled.notices,
    )


def _try_out(engine: BaseGrammarBackend, grammar: BaseGrammarObject) -> None:
    config = engine.environment.config
    for one in (grammar, *engine.parts_to_try(grammar)):
        slowest = None if engine.counts_work else config.max_mask_seconds
        walk(one, config.walk_steps, max_mask_seconds=slowest)
        walk(one, config.walk_steps, max_mask_seconds=slowest, prefers=_SEPARATORS)


def serve(backend: AutoGrammarBackend, connection: socket.socket) -> None:
    """Answer jobs until the other end closes."""
    limit_memory(backend.environment.config.compile_memory_bytes)
    while (job := _receive(connection)) is not None:
        connection.sendall(frame(compile_and_walk(backend, decode_job(job).spec)))


def limit_memory(num_bytes: int) -> None:
    """Let this process allocate ``num_bytes`` beyond what it has, and write no core."""
    pages = int(open("/proc/self/statm").read().split()[0]) if sys.platform == "linux" else 0  # noqa: SIM115
    bound = pages * os.sysconf("SC_PAGE_SIZE") + num_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _receive(connection: socket.socket) -> bytes | None:
    header = _receive_exactly(connection, HEADER_BYTES)
    return None if header is None else _receive_exactly(connection, frame_length(header))


def _receive_exactly(connection: socket.socket, num_bytes: int) -> bytes | None:
    data = bytearray()
    while len(data) < num_bytes:
        chunk = connection.recv(min(num_bytes - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
