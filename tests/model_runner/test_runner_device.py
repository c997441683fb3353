"""Which device a rank takes."""

from __future__ import annotations

import pytest
import torch

from model_runner.device import choose_device
from model_runner.errors import ModelLoadError


@pytest.fixture
def two_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_cuda_devices")
def test_each_rank_of_a_machine_takes_a_device_of_its_own() -> None:
    assert [choose_device(name, local_rank=1) for name in ("auto", "cuda")] == [torch.device("cuda", 1)] * 2
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert choose_device("cpu", local_rank=1) == torch.device("cpu")


@pytest.mark.usefixtures("two_cuda_devices")
def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(ModelLoadError, match="'cuda:2', which rank 2 of this machine needs, is not there: 2 CUDA"):
        choose_device("auto", local_rank=2)
    with pytest.raises(ModelLoadError, match="'cuda:2', which rank 1 of this machine needs"):
        choose_device("cuda:1", local_rank=1)
    with pytest.raises(ModelLoadError, match="'cuda:5' is not there: 2 CUDA"):
        choose_device("cuda:5")


def test_without_a_cuda_device_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", local_rank=3) == torch.device("cpu")
