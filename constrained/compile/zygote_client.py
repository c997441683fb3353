"""Starting the process that compile workers are forked from, and giving it orders."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

from constrained.compile.protocol import (
    MAX_CONTROL_BYTES,
    Fork,
    FromZygote,
    Kill,
    Pause,
    Ready,
    decode_from_zygote,
    encode_control,
    encode_environment,
)
from constrained.environment import GrammarEnvironment

# The module search path is handed over as it is: the working directory, which may hold anything, is not on it unless
# it is on ours.
_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    # Before the engines are imported, which takes seconds.
    "from constrained.compile.parent import die_with_parent; die_with_parent(int(sys.argv[3])) or sys.exit(); "
    "from constrained.compile.zygote import main; main(int(sys.argv[2]))"
)
_MAX_START_DELAY = 30.0


class ZygoteGoneError(Exception):
    """The zygote died, and every worker with it."""


class ZygoteClient:
    """At most one zygote at a time; used by the pool's thread alone."""

    def __init__(self, environment: GrammarEnvironment) -> None:
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self.is_ready = False
        self.num_failed_starts = 0
        """Starts in a row that did not get ready."""
        self.next_start = 0.0
        """Earliest ``time.monotonic()`` of the next start."""

    @property
    def control(self) -> socket.socket | None:
        """Readable when the zygote has said something, or is gone; ``None`` while there is none."""
        return self._control

    def start(self) -> socket.socket:
        """Start the process and return :attr:`control`; :attr:`is_ready` follows when it has imported everything."""
        parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-c", _CODE, json.dumps(sys.path), str(child.fileno()), str(os.getpid())]
        environ = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        # A file without a name instead of a pipe: nobody has to wait until the process reads it.
        with os.fdopen(os.memfd_create("grammar-environment"), "w+b") as stdin:
            stdin.write(encode_environment(self._environment))
            stdin.seek(0)
            self._process = subprocess.Popen(command, stdin=stdin, pass_fds=[child.fileno()], env=environ)
        child.close()
        parent.setblocking(False)
        self._control = parent
        return parent

    def fork(self, key: int) -> socket.socket:
        """Order a worker. Its connection may be written to at once; its process id follows in ``Forked(key, pid)``."""
        parent, child = socket.socketpair()
        parent.setblocking(False)
        with child:
            self._order(Fork(key), [child.fileno()])
        return parent

    def kill(self, pid: int) -> None:
        """Order a worker's end."""
        self._order(Kill(pid), [])

    def pause(self, pid: int, is_paused: bool) -> None:
        """Order a worker to stop, or to go on."""
        self._order(Pause(pid, is_paused), [])

    def receive(self) -> FromZygote | None:
        """What the zygote has said; ``None`` if nothing. Raises :class:`ZygoteGoneError`."""
        if self._control is None:
            return None
        try:
            data = self._control.recv(MAX_CONTROL_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ZygoteGoneError from error
        if not data:
            raise ZygoteGoneError
        message = decode_from_zygote(data)
        if isinstance(message, Ready):
            self.is_ready = True
            self.num_failed_starts = 0
        return message

    def stop(self, *, failed: bool) -> None:
        """Close the control socket, which ends the zygote and its workers. ``failed`` delays the next start."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                # One that is still importing would not notice before it is done.
                self._process.wait(timeout=2 if self.is_ready and not failed else 0.1)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if failed and not self.is_ready:
            self.num_failed_starts += 1
            self.next_start = time.monotonic() + min(_MAX_START_DELAY, 0.5 * 2**self.num_failed_starts)
        self.is_ready = False

    def _order(self, order: Fork | Kill | Pause, fds: list[int]) -> None:
        if self._control is None:
            raise ZygoteGoneError
        try:
            socket.send_fds(self._control, [encode_control(order)], fds)
        except OSError as error:
            raise ZygoteGoneError from error
