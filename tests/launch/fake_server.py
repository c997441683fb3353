"""A server of small processes with the behaviours a supervisor must handle; run as a script by the tests.

Each child writes its pid to ``<folder>/<name>.pid`` and then waits for files that tell it what to do. There may be
several schedulers: ``works+fails`` is a group of two ranks, ``works|works`` are two groups.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from server.http.access_log import configure_logging
from server.launch.console import Console
from server.launch.processes.child import ChildSpec
from server.launch.processes.entries import die_with_parent
from server.launch.processes.restarts import RestartPolicy
from server.launch.processes.status import StatusPipe
from server.launch.signals import queued_signals
from server.launch.supervisor import Supervisor


def child(name: str, folder: Path, behaviour: str, connection: Connection) -> None:
    die_with_parent()
    status = StatusPipe.take_over(connection)
    stopping = threading.Event()
    if behaviour == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    status.send(("progress", f"loading {name}", 0.5))
    if behaviour == "fails":
        status.send(("failed", "the weights are written in invisible ink"))
        sys.exit(1)
    if behaviour == "dies while starting":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour in ("loads for ever", "hangs while loading"):
        time.sleep(600)
    if behaviour == "fails the second time" and (folder / f"{name}.seen").exists():
        sys.exit(9)
    (folder / f"{name}.seen").touch()
    status.send(("ready", "fake"))
    while not stopping.is_set():
        if behaviour == "always crashes" or (folder / f"crash-{name}").exists():
            (folder / f"crash-{name}").unlink(missing_ok=True)
            os._exit(7)
        if behaviour == "beats":
            status.send(("alive",))
        time.sleep(0.01)
    while behaviour == "drains" and not (folder / "release").exists():
        time.sleep(0.01)
    (folder / f"{name}.stopped").touch()


def scheduler_specs(folder: Path, schedulers: str) -> list[ChildSpec]:
    groups = schedulers.split("|")
    specs = []
    for number, behaviours in enumerate(groups):
        group = "scheduler" if len(groups) == 1 else f"scheduler-{number}"
        ranks = behaviours.split("+")
        for rank, behaviour in enumerate(ranks):
            name = group if len(ranks) == 1 else f"{group} rank {rank}"
            specs.append(
                ChildSpec(
                    name,
                    "scheduler",
                    child,
                    (name, folder, behaviour),
                    silence_limit=1.0 if behaviour == "beats" else None,
                    start_limit=3.0 if behaviour == "hangs while loading" else None,
                    group=group,
                )
            )
    return specs


def main() -> int:
    folder, scheduler, http, drain_timeout = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
    configure_logging("info", "text")
    with queued_signals() as signals, socket.socket() as listener, Console() as console:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        (folder / "port").write_text(str(listener.getsockname()[1]))
        supervisor = Supervisor(
            [
                *scheduler_specs(folder, scheduler),
                ChildSpec("http-0", "http", child, ("http-0", folder, http)),
            ],
            listener=listener,
            console=console,
            drain_timeout=drain_timeout,
            on_ready=lambda: (folder / "ready").touch(),
            policy=lambda: RestartPolicy(first_pause=0.01),
        )
        return supervisor.run(signals)


if __name__ == "__main__":
    sys.exit(main())
