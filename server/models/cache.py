"""The user's cache folder: what is fetched or derived once lies here, and appears there only when complete."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from server.models.errors import ModelResolutionError
from server.models.progress import Progress


def cache_dir() -> Path:
    """``SCANSION_CACHE_DIR``, or ``scansion`` below ``XDG_CACHE_HOME``, or ``~/.cache/scansion``; made if missing."""
    own = os.environ.get("SCANSION_CACHE_DIR")
    xdg = os.environ.get("XDG_CACHE_HOME")
    folder = Path(own).expanduser() if own else (Path(xdg) if xdg else Path.home() / ".cache") / "scansion"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelResolutionError(
            f"the cache folder {folder} cannot be made: {error.strerror}. Set SCANSION_CACHE_DIR to a folder you own."
        ) from error
    return folder


@contextlib.contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock beside ``path``, so that of several starts at once one does the work and the others wait."""
    lock = FileLock(f"{path}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.stage(f"Waiting for another start to finish with {path.name}")
        lock.acquire()
    except OSError as error:
        raise ModelResolutionError(f"{path.parent} cannot be written to: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """A new file beside ``path`` to write to, which takes its place only when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def file_stamp(path: Path) -> str:
    """Changes whenever the file does: its place, size and time of last change."""
    stat = path.stat()
    return f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"


def derived_dir(kind: str, *sources: Path) -> Path:
    """Where what is derived from ``sources`` is cached; another folder as soon as one of them changes."""
    key = hashlib.sha256("\n".join([kind, *map(file_stamp, sources)]).encode()).hexdigest()[:24]
    return cache_dir() / "derived" / f"{kind}-{key}"
