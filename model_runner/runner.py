"""The model runner: a loaded model and its KV pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from model_runner.attention.registry import create_backend
from model_runner.batch import build_batch
from model_runner.config import RunnerConfig
from model_runner.device import choose_device, choose_dtype
from model_runner.forward_row import ForwardRow
from model_runner.layers.linear import ROW_TILE
from model_runner.open import load_model
from model_runner.ranks import Ranks
from model_runner.sizing import count_pages
from model_runner.threads import choose_num_threads


def _ignore_progress(stage: str, fraction: float) -> None:
    pass


class ModelRunner:
    """
    Runs forward passes of one model over its KV pages.

    Page ids are ``0 .. num_pages - 1``; who holds which page is the scheduler's business.

    Parameters
    ----------
    config : RunnerConfig
        What to load and where.
    progress : callable
        Called with a stage's name and the done fraction of it.
    ranks : Ranks, optional
        The tensor-parallel group that this process is a rank of: the model and its KV are cut, every rank makes the
        same forward passes, and rank 0 gets the logits.

    Raises
    ------
    ModelLoadError
        If the model cannot be served; the message is for a person.
    """

    def __init__(
        self,
        config: RunnerConfig,
        progress: Callable[[str, float], None] = _ignore_progress,
        ranks: Ranks | None = None,
    ) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(choose_num_threads(config.num_threads))
        self.device = choose_device(config.device) if ranks is None else ranks.device
        self.dtype = choose_dtype(config.dtype, self.device)
        self.page_size = config.page_size
        loaded = load_model(config, device=self.device, dtype=self.dtype, progress=progress, ranks=ranks)
        self._model = loaded.model
        self.vocab_size = loaded.model.vocab_size
        self.context_length = loaded.context_length
        self.num_parameters = loaded.num_parameters
        self.weight_bytes = loaded.num_parameters * self.dtype.itemsize
        self._attention = create_backend(
            config.attention_backend,
            loaded.attention_layers,
            page_size=config.page_size,
            dtype=self.dtype,
            device=self.device,
        )
        self.attention_backend = self._attention.name
        if ranks is not None:
            ranks.wait_for_all("loading")
        self.num_pages = count_pages(
            config,
            page_bytes=self._attention.page_bytes(),
            context_length=self.context_length,
            device=self.device,
        )
        if ranks is not None:
            self.num_pages = ranks.smallest(self.num_pages)
        progress("allocating the KV cache", 0.0)
        self._attention.allocate(self.num_pages)
        progress("allocating the KV cache", 1.0)

    @property
    def row_tile(self) -> int:
        """Tokens that are computed at the price of one: a step is rounded up to whole tiles of them."""
        return ROW_TILE if self.dtype == torch.float32 else 1

    @torch.inference_mode()
    def forward(self, rows: Sequence[ForwardRow], previous_token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """
        Compute the rows' tokens, write their keys and values, and return the logits asked for.

        Parameters
        ----------
        rows : sequence of ForwardRow
            One ragged batch: prefill chunks, decodes and drafts mixed.
        previous_token_ids : torch.Tensor, optional
            [N] ids on the device; a row with a ``pending_index`` takes its last token from here.

        Returns
        -------
        torch.Tensor
            [S, V] float32 on the device, S the sum of ``num_logits``, in the order of the rows; of several ranks
            only rank 0 has them, and the others get [S, 0].
        """
        batch = build_batch(
            rows,
            self._attention.arrange(rows),
            page_size=self.page_size,
            device=self.device,
            row_tile=self.row_tile,
            previous_token_ids=previous_token_ids,
        )
        return self._model.forward(batch, self._attention)
