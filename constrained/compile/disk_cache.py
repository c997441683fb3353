"""Compiled grammars on disk, so that a restart does not compile again.

A file holds a checksum and one msgpack message, named by a hash of everything the result depends on: the specification,
the vocabulary, the engines' versions, the server's options and this package's own source. Nothing is unpickled, a file
that does not check out is removed, and a file appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from constrained.compile.protocol import CompileResult
from constrained.spec import GrammarSpec

_SUFFIX = ".grammar"
_OUR_FILES = "[0-9a-f]" * 64 + _SUFFIX + "*"
"""Those that are being written too, and what a killed server left of them; nothing else in the folder is touched."""
_DIGEST_BYTES = 32
_decoder = msgspec.msgpack.Decoder(CompileResult)
_encoder = msgspec.msgpack.Encoder()


class DiskCache:
    """A folder of at most ``max_bytes``; what was used longest ago goes first.

    Parameters
    ----------
    folder
        Made where it is missing, for this user alone.
    max_bytes
        Bound of all files together.
    fingerprint
        Hash of everything but the specification that a result depends on.
    """

    def __init__(self, folder: Path, max_bytes: int, fingerprint: str) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.fingerprint = fingerprint
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get(self, spec: GrammarSpec) -> CompileResult | None:
        path = self._path(spec)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        try:
            if hashlib.sha256(payload).digest() != digest:
                raise msgspec.DecodeError("checksum")
            result = _decoder.decode(payload)
        except msgspec.DecodeError:
            self.remove(spec)
            return None
        with contextlib.suppress(OSError):  # read-only, or trimmed by another process just now: what was read is good
            os.utime(path)
        return result

    def put(self, spec: GrammarSpec, result: CompileResult) -> None:
        """Raises :class:`OSError` where the folder cannot be written."""
        payload = _encoder.encode(result)
        if len(payload) + _DIGEST_BYTES > self.max_bytes:
            return
        descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=self._path(spec).name + ".")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(payload).digest() + payload)
            os.replace(temporary, self._path(spec))
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._trim()

    def remove(self, spec: GrammarSpec) -> None:
        with contextlib.suppress(OSError):  # in a read-only folder it stays, and is found useless again
            self._path(spec).unlink()

    def _path(self, spec: GrammarSpec) -> Path:
        digest = hashlib.sha256(self.fingerprint.encode() + b"\0" + _encoder.encode(spec)).hexdigest()
        return self.folder / (digest + _SUFFIX)

    def _trim(self) -> None:
        files = []
        for path in self.folder.glob(_OUR_FILES):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # another process trimmed it
            files.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def package_fingerprint() -> str:
    """Hash of this package's source: how a specification is rewritten decides what a payload means."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
