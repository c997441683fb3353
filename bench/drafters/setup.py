"""A loaded model, and engines over it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from bench.drafters.engine import Engine
from constrained.config import JsonWhitespace
from constrained.vocabulary import Vocabulary
from model_runner.config import DtypeName, RunnerConfig
from model_runner.runner import ModelRunner
from scheduler.config import SchedulerConfig
from scheduler.drafters.draft_model import DraftModelDrafter
from scheduler.drafters.grammar import MIN_FORCED_TOKENS
from scheduler.memory.kv_pool import KvPool
from server.models.resolve import resolve

Config = Mapping[str, object]
OFF: Config = {"jump_forward": False, "speculative": "off"}
JUMP_FORWARD: Config = {"jump_forward": True, "speculative": "off"}
NGRAM: Config = {"jump_forward": False, "speculative": "ngram"}


class Bench:
    """
    Parameters
    ----------
    options
        Of the command line.
    dtype
        Instead of the one named there, if none is.
    """

    def __init__(self, options: argparse.Namespace, *, dtype: DtypeName) -> None:
        self._options = options
        self._dtype: DtypeName = options.dtype or dtype
        assets = resolve(options.model)
        tokenizer_json = Path(assets.tokenizer_json)
        self.name = assets.name
        self.tokenizer = Tokenizer.from_file(str(tokenizer_json))
        self.vocabulary = Vocabulary.from_tokenizer_json(tokenizer_json)
        self.eos_token_ids = assets.eos_token_ids
        self.runner = self._load(assets.weights_path)

    def __str__(self) -> str:
        return f"{self.name}, {str(self.runner.dtype).removeprefix('torch.')} on {self.runner.device}"

    @property
    def is_exact(self) -> bool:
        """Whether answers may not depend on drafts and neighbours."""
        return self.runner.dtype == torch.float32

    @cached_property
    def draft_runner(self) -> ModelRunner:
        """``--draft-model``, or the model once more: the draft model that is right most often."""
        return self._load(resolve(self._options.draft_model or self._options.model).weights_path)

    def _load(self, weights_path: Path) -> ModelRunner:
        return ModelRunner(
            RunnerConfig(
                model_path=weights_path,
                dtype=self._dtype,
                device=self._options.device,
                kv_cache_tokens=16384,
                num_threads=self._options.num_threads,
            )
        )

    def engine(
        self,
        config: Config,
        *,
        whitespace: JsonWhitespace = "compact",
        pages: int | None = None,
        min_forced_tokens: int = MIN_FORCED_TOKENS,
        drafts_everywhere: bool = False,
    ) -> Engine:
        """``drafts_everywhere``: also where the server would leave them, for they would begin another tile of rows."""
        settings: dict[str, Any] = {**OFF, **config}
        scheduler = SchedulerConfig(endpoint="", max_running_requests=16, prefix_cache=pages is not None, **settings)
        draft_model = None
        if scheduler.speculative == "draft-model":
            draft_model = DraftModelDrafter(
                self.draft_runner,
                KvPool(self.draft_runner.num_pages, self.draft_runner.page_size),
                context_length=self.draft_runner.context_length,
                max_tokens=scheduler.max_draft_tokens,
                max_batch_tokens=scheduler.max_batch_tokens,
            )
        return Engine(
            self.runner,
            self.tokenizer,
            self.vocabulary,
            self.eos_token_ids,
            scheduler,
            whitespace=whitespace,
            num_pages=pages,
            draft_model=draft_model,
            min_forced_tokens=min_forced_tokens,
            row_tile=1 if drafts_everywhere else self.runner.row_tile,
        )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids
