"""A private folder for the sockets between the processes of one server, gone when the server is."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from server.launch.errors import StartError

_PREFIX = "scansion-run-"
_LOCK = "owner.lock"
_MAX_SOCKET_PATH = 100  # bytes; sockaddr_un holds 108 on Linux, 104 on macOS
_LONGEST_NAME = "scheduler1023"


@contextlib.contextmanager
def runtime_dir() -> Iterator[Path]:
    """A new folder that only this user may enter; what killed servers left behind is swept away first."""
    base = _base()
    _sweep(base)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))  # mode 0700
    except OSError as error:
        raise StartError(f"no folder for sockets can be made in {base}: {error.strerror}") from error
    lock = FileLock(folder / _LOCK)
    lock.acquire(timeout=0)
    try:
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _base() -> Path:
    named = os.environ.get("XDG_RUNTIME_DIR")
    candidates = [Path(named)] if named else []
    candidates += [Path(tempfile.gettempdir()), Path("/tmp")]
    for folder in candidates:
        example = folder / f"{_PREFIX}12345678" / _LONGEST_NAME
        if folder.is_dir() and os.access(folder, os.W_OK) and len(os.fsencode(example)) <= _MAX_SOCKET_PATH:
            return folder
    raise StartError(f"no folder for sockets: none of {', '.join(map(str, candidates))} is writable with a short path")


def _sweep(base: Path) -> None:
    """Remove folders of this user whose lock nobody holds: their server was killed before it could."""
    for folder in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, Timeout):
            if folder.stat().st_uid != os.getuid() or not (folder / _LOCK).exists():
                continue
            with FileLock(folder / _LOCK, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
