"""Backends that misbehave while compiling, each in its own way. Imported by compile workers."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, register_grammar_backend
from constrained.engines.xgrammar_backend import XGrammarBackend


class _Misbehaving(XGrammarBackend):
    def misbehave(self, value: str) -> None:
        raise NotImplementedError

    def dispatch_regex(self, value: str) -> BaseGrammarObject:
        self.misbehave(value)
        return super().dispatch_regex("a")


class Segfault(_Misbehaving):
    name = "segfault"

    def misbehave(self, value: str) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Endless(_Misbehaving):
    name = "endless"

    def misbehave(self, value: str) -> None:
        while True:
            pass


class MemoryBomb(_Misbehaving):
    name = "memory-bomb"

    def misbehave(self, value: str) -> None:
        blocks = []
        while True:
            blocks.append(np.empty(16 << 20, dtype=np.uint8))


class Slow(_Misbehaving):
    """Sleeps for as many seconds as the expression says."""

    name = "slow"

    def misbehave(self, value: str) -> None:
        time.sleep(float(value))


class Busy(_Misbehaving):
    """Needs as many seconds of CPU as the expression says."""

    name = "busy"

    def misbehave(self, value: str) -> None:
        started = time.process_time()
        while time.process_time() - started < float(value):
            pass


class RealTimeSignal(_Misbehaving):
    name = "real-time-signal"

    def misbehave(self, value: str) -> None:
        os.kill(os.getpid(), signal.SIGRTMIN + 3)


class Raising(_Misbehaving):
    name = "raising"

    def misbehave(self, value: str) -> None:
        raise KeyError("inside the engine")


BACKENDS: tuple[type[BaseGrammarBackend], ...] = (Segfault, Endless, MemoryBomb, Slow, Busy, RealTimeSignal, Raising)
for backend in BACKENDS:
    register_grammar_backend(backend.name, backend)
