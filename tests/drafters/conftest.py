"""A tiny random model with a real byte-level tokenizer, and engines over it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.drafters.engine import Engine
from constrained.vocabulary import Vocabulary
from model_runner.config import RunnerConfig
from model_runner.runner import ModelRunner
from scheduler.config import SchedulerConfig

TEXTS = [
    json.dumps({"name": "Ada", "category": "billing", "age": 36, "tags": ["a", "b"]}),
    json.dumps({"name": "Bob", "category": "delivery", "age": 7, "tags": []}, separators=(",", ":")),
    "The quick brown fox jumps over the lazy dog. The quick brown fox sleeps. Größe, façade, naïve, 日本語.",
] * 8


@dataclass(frozen=True)
class TinyModel:
    runner: ModelRunner
    tokenizer: Tokenizer
    tokenizer_json: Path
    vocabulary: Vocabulary
    eos_token_ids: tuple[int, ...]
    config: RunnerConfig

    def engine(self, *, num_pages: int | None = None, draft_model: object = None, **config: object) -> Engine:
        return Engine(
            self.runner,
            self.tokenizer,
            self.vocabulary,
            self.eos_token_ids,
            SchedulerConfig(endpoint="", max_running_requests=16, **{"jump_forward": False, **config}),  # type: ignore[arg-type]
            num_pages=num_pages,
            draft_model=draft_model,  # type: ignore[arg-type]
        )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|end|>", "</think>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Callable[..., TinyModel]:
    def make(seed: int = 0) -> TinyModel:
        tokenizer = Tokenizer.from_file(str(tiny_tokenizer))
        folder = tmp_path_factory.mktemp("model")
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-5,
        }
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        runner_config = RunnerConfig(
            model_path=folder,
            load_format="dummy",
            dtype="float32",
            device="cpu",
            page_size=4,
            kv_cache_tokens=4096,
            seed=seed,
        )
        end = tokenizer.token_to_id("<|end|>")
        return TinyModel(
            ModelRunner(runner_config),
            tokenizer,
            tiny_tokenizer,
            Vocabulary.from_tokenizer_json(tiny_tokenizer),
            (end,),
            runner_config,
        )

    return make


@pytest.fixture(scope="session")
def tiny(make_tiny: Callable[..., TinyModel]) -> TinyModel:
    return make_tiny()
