"""The real server with the real model, for answers that are truly generated."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest


class RealServer:
    """A ``scansion serve`` process."""

    def __init__(self, folder: Path, model: Path, *more_flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        flags = ["--model", str(model), "--served-model-name", "m", "--port", str(self.port), "--num-threads", "1"]
        flags += ["--dtype", "float32", "--kv-cache-tokens", "16384", *more_flags]
        command = [str(Path(sysconfig.get_path("scripts")) / "scansion"), "serve", *flags]
        environment = {
            key: value for key, value in os.environ.items() if key.lower() not in ("http_proxy", "all_proxy")
        }
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.http = httpx.Client(base_url=self.url, timeout=120, trust_env=False)

    def wait_ready(self, seconds: float = 180.0) -> None:
        deadline = time.monotonic() + seconds
        while not self._is_ready():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def chat(self, body: dict) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=body)

    def stop(self) -> None:
        self.http.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


RANDOM_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip


def write_random_model(folder: Path, tokenizer: str, chat_template: str, eos_token_ids: Sequence[int]) -> Path:
    """A model for ``--load-format dummy``: a real tokenizer, and weights that say anything."""
    model = folder / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text(tokenizer)
    (model / "config.json").write_text(json.dumps(RANDOM_CONFIG))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": list(eos_token_ids)}))
    (model / "chat_template.jinja").write_text(chat_template)
    return model


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Iterator[RealServer]:
    server = RealServer(tmp_path_factory.mktemp("tools"), smollm2_gguf)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
