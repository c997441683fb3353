"""Hugging Face ids go through huggingface_hub, and its errors are told to a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from server.models import ModelResolutionError
from server.models.hub import fetch_repository, is_repository_id
from server.models.progress import SilentProgress


@pytest.mark.parametrize(
    ("text", "expected"),
    [("HuggingFaceTB/SmolLM2-135M", True), ("gpt2", True), ("a/b/c", False), ("../x", False), ("a b", False)],
)
def test_what_is_spelled_like_an_id(text: str, expected: bool) -> None:
    assert is_repository_id(text) is expected


def response(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "http://hub.invalid/api"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.GatedRepoError("x", response=response(403)), "is gated: accept its terms"),
        (errors.RepositoryNotFoundError("x", response=response(404)), "neither a file or folder here nor a repository"),
        (errors.RevisionNotFoundError("x", response=response(404)), "has no revision 'r'"),
        (errors.LocalEntryNotFoundError("x"), "cannot be reached"),
        (errors.OfflineModeIsEnabled("x"), "cannot be reached"),
        (httpx.ConnectError("x"), "cannot be reached"),
        (errors.HfHubHTTPError("quota", response=response(429)), "the hub refused o/m at revision r: quota"),
        (OSError(28, "No space left on device"), "could not be stored"),
    ],
)
def test_each_failure_says_what_to_do(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    def fail(*args: Any, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelResolutionError) as caught:
        fetch_repository("o/m", revision="r", weights=True, progress=SilentProgress())
    assert said in str(caught.value)


@pytest.mark.parametrize("weights", [True, False])
def test_only_what_is_needed_is_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weights: bool) -> None:
    asked: dict[str, Any] = {}

    def download(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert fetch_repository("o/m", revision="main", weights=weights, progress=SilentProgress()) == tmp_path
    assert (asked["repository"], asked["revision"]) == ("o/m", "main")
    files = ["config.json", "model-1.safetensors", "pytorch_model.bin", "onnx/model.onnx", "tokenizer.json", "a.gguf"]
    chosen = huggingface_hub.utils.filter_repo_objects(
        files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    expected = {"config.json", "tokenizer.json"} | ({"model-1.safetensors"} if weights else set())
    assert set(chosen) == expected


def test_a_repository_in_the_hubs_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--o--m" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = tmp_path / "models--o--m" / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    path = fetch_repository("o/m", revision=None, weights=True, progress=SilentProgress())
    assert path == snapshot
    with pytest.raises(ModelResolutionError, match="cannot be reached"):
        fetch_repository("o/other", revision=None, weights=True, progress=SilentProgress())
