from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fake_openai() -> ModuleType:
    """The module of the fake server: this folder is no package, so that it is loaded by its path."""
    name = "bench_fake_openai"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("fake_openai.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
