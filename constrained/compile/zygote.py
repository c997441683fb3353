"""The process that compile workers are forked from.

It has imported the engines and built the vocabulary once, so that a worker starts in milliseconds and shares that
memory; so a worker that was killed, crashed or fell behind is replaced at once. It never compiles anything itself, runs
one thread, and ends when the scheduler's end of its control socket closes; its workers die with it.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys

from constrained.compile.parent import die_with_parent
from constrained.compile.protocol import (
    MAX_CONTROL_BYTES,
    Exited,
    Fork,
    Forked,
    FromZygote,
    Kill,
    Pause,
    Ready,
    decode_environment,
    decode_to_zygote,
    encode_control,
)
from constrained.compile.worker import serve
from constrained.engines.auto import AutoGrammarBackend

_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


def main(control_fd: int) -> None:
    """Entry point: the environment comes on standard input, orders on the control socket."""
    control = socket.socket(fileno=control_fd)
    backend = AutoGrammarBackend(decode_environment(sys.stdin.buffer.read()))
    _warm(backend)
    _Zygote(control, backend).run()


def _warm(backend: AutoGrammarBackend) -> None:
    """Build what every worker needs before forking."""
    backend.warm()
    backend.compile_common_rules()
    # Keeps the collector from touching, and so copying, pages that the workers share.
    gc.collect()
    gc.freeze()


class _Zygote:
    def __init__(self, control: socket.socket, backend: AutoGrammarBackend) -> None:
        self.control = control
        self.backend = backend
        self.pids: set[int] = set()
        self.own_bytes = _resident_bytes()

    def run(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the scheduler decides
        self._say(Ready())
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                    self._reap()
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        """Handle one order; ``False`` when the scheduler is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, MAX_CONTROL_BYTES, 1)
        except ConnectionResetError:
            return False  # it left without having read what was said to it
        if not data:
            return False
        match decode_to_zygote(data):
            case Fork(key=key):
                self._fork(key, fds[0])
            case Kill(pid=pid):
                # Only this process reaps its children, so the id cannot have passed to another process.
                if pid in self.pids:
                    os.kill(pid, signal.SIGKILL)
            case Pause(pid=pid, is_paused=is_paused):
                if pid in self.pids:
                    os.kill(pid, signal.SIGSTOP if is_paused else signal.SIGCONT)
        return True

    def _say(self, message: FromZygote) -> None:
        try:
            self.control.send(encode_control(message))
        except (BrokenPipeError, ConnectionResetError):
            raise SystemExit from None  # the scheduler has left

    def _fork(self, key: int, fd: int) -> None:
        zygote_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._become_worker(zygote_pid, fd)
            finally:
                os._exit(0)
        os.close(fd)
        self.pids.add(pid)
        self._say(Forked(key, pid))

    def _become_worker(self, zygote_pid: int, fd: int) -> None:
        if not die_with_parent(zygote_pid):
            return
        signal.set_wakeup_fd(-1)
        # Engines install handlers that print a backtrace for seconds before a crash is noticed.
        for number in (*_CRASHES, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        self.control.close()
        # A dying engine writes its state, and so a client's specification, to standard error.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        serve(self.backend, socket.socket(fileno=fd))

    def _reap(self) -> None:
        while self.pids:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            self.pids.discard(pid)
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            self._say(Exited(pid, number, max(0, usage.ru_maxrss * 1024 - self.own_bytes)))


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
