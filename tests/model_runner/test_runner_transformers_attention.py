"""What the probe learns of a transformers model's attention, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from model_runner.errors import ModelLoadError
from model_runner.models.transformers_attention import AttentionProbe
from model_runner.runner import ModelRunner

QUERY, KEY, VALUE = torch.zeros(2, 4, 16), torch.zeros(2, 2, 16), torch.zeros(2, 2, 8)


def test_the_probe_learns_every_served_keyword() -> None:
    probe = AttentionProbe()
    sinks = torch.zeros(4)
    keywords = {
        "scaling": 0.5,
        "dropout": 0.1,
        "sliding_window": 7,
        "softcap": 30.0,
        "s_aux": sinks,
        "use_cache": False,
    }
    out = probe.attend(nn.Identity(), QUERY, KEY, VALUE, keywords)
    assert out.shape == (2, 4 * 8)
    (layer,) = probe.layers
    assert (layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.value_dim) == (4, 2, 16, 8)
    assert (layer.scale, layer.sliding_window, layer.softcap) == (0.5, 7, 30.0)
    assert layer.sinks is sinks
    assert layer.features == {"sliding_window", "softcap", "sinks", "value_width"}


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"attention_mask": torch.zeros(1)}, "mask"),
        ({"is_causal": False}, "not causal"),
    ],
)
def test_what_no_backend_serves_is_refused_by_name(keywords: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        AttentionProbe().attend(nn.Identity(), QUERY, KEY, VALUE, keywords)


def test_a_layer_that_attends_twice_is_refused() -> None:
    probe, module = AttentionProbe(), nn.Identity()
    probe.attend(module, QUERY, KEY, VALUE, {})
    with pytest.raises(ModelLoadError, match="more than once"):
        probe.attend(module, QUERY, KEY, VALUE, {})


def test_a_window_that_lives_only_in_a_mask_is_refused(
    make_checkpoint: Callable[..., Path], load_runner: Callable[..., ModelRunner], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(make_checkpoint("gpt_neox"), tmp_path / "model"))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "sliding_window": 16}))
    with pytest.raises(ModelLoadError, match="sliding window"):
        load_runner(folder)
