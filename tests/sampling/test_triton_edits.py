"""The CUDA kernel of the logit edits, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(HERE)])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_fused_kernel_equals_the_tensor_operations() -> None:
    result = run(str(HERE / "triton_edits_agree.py"), TRITON_INTERPRET="1")
    assert result.returncode == 0, result.stdout + result.stderr


def test_sampling_needs_no_triton() -> None:
    hidden = (
        "import sys; sys.modules['triton'] = None; import sampling.sampler, sampling.draw_cpu, sampling.apply_edits"
    )
    result = run("-c", hidden)
    assert result.returncode == 0, result.stderr


def test_parameters_and_their_validation_need_no_torch() -> None:
    hidden = "import sys; sys.modules['torch'] = None; import sampling.validation, sampling.params"
    result = run("-c", hidden)
    assert result.returncode == 0, result.stderr
