"""Every live choice of a scheduler: its parameters, its counted tokens, and the step that draws for all of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch

from sampling.apply_edits import apply_edits
from sampling.draw import draw
from sampling.layout import SampleRow, SamplingLayout, build_layout, signature_of
from sampling.logit_edits import LogitEdits, join_masks
from sampling.logprobs import LogprobTensors, SampledLogprob, compute_logprobs
from sampling.orchestrator import BatchedPenalizerOrchestrator, CompactPenalties, DraftedPositions
from sampling.params import SamplingParams
from sampling.penalizer import Suppressions
from sampling.penalizers import PENALIZERS

__all__ = ["SampleOutput", "SampleRow", "SamplerState"]


@dataclass(frozen=True)
class SampleOutput:
    """What a step drew. Tensors stay on the device until someone reads them."""

    token_ids: torch.Tensor
    """``[S]`` int64, what plain decoding would draw at every position; meaningless after the first disagreement."""
    num_accepted: torch.Tensor
    """``[R]`` int64, drafts kept: a row yields ``num_accepted + 1`` tokens, from its first position on."""
    failed: torch.Tensor
    """``[R]`` bool: the logits of the row's last token hold a NaN, or nothing but -inf."""
    logprobs: LogprobTensors | None
    """Of the positions of rows that asked, in row order."""
    layout: SamplingLayout

    def logprobs_of(self, row: int, num_tokens: int) -> list[SampledLogprob] | None:
        """The first ``num_tokens`` log-probabilities of a row; ``None`` where it did not ask. Waits for the device."""
        span = self.layout.logprob_spans[row]
        if span is None or self.logprobs is None:
            return None
        start, num_top = span
        part = slice(start, start + num_tokens)
        tensors = LogprobTensors(
            self.logprobs.token_ids[part],
            self.logprobs.logprobs[part],
            self.logprobs.top_token_ids[part],
            self.logprobs.top_logprobs[part],
        )
        return tensors.to_lists([num_top] * num_tokens)


@dataclass(frozen=True)
class SampledChoice:
    """One choice of one request."""

    sampling_params: SamplingParams
    prompt_token_ids: Sequence[int]
    eos_token_ids: Sequence[int]
    seed: int
    choice_index: int


@dataclass(eq=False)
class _PenalizedChoices:
    """The choices that some penalizer applies to: the batch of the orchestrator."""

    device: torch.device
    reqs: list[SampledChoice] = field(default_factory=list)
    keys: list[Hashable] = field(default_factory=list)
    row_of: dict[Hashable, int] = field(default_factory=dict)


class SamplerState:
    """Sampling state of all live choices.

    Parameters
    ----------
    vocab_size
        Width of the logits.
    eos_token_ids
        End-of-text ids of the model, which ``min_tokens`` suppresses.
    device
        Where the logits are.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int], device: torch.device) -> None:
        self.vocab_size = vocab_size
        # An id beyond the logits cannot be drawn, so there is nothing to suppress.
        self.eos_token_ids = tuple(token_id for token_id in eos_token_ids if 0 <= token_id < vocab_size)
        self.device = device
        self._choices: dict[Hashable, SampledChoice] = {}
        self._penalized = _PenalizedChoices(device)
        self.orchestrator = BatchedPenalizerOrchestrator(vocab_size, self._penalized)
        self._layout: SamplingLayout | None = None

    @torch.inference_mode()
    def add(
        self,
        key: Hashable,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        *,
        seed: int,
        choice_index: int = 0,
    ) -> None:
        """Begin a choice.

        Parameters
        ----------
        key
            Names the choice until :meth:`remove`.
        params
            Accepted by :func:`sampling.validation.validate_sampling_params`.
        prompt_token_ids
            Looked at under ``penalize_prompt`` only.
        seed
            Any int64: the request's, or a random one drawn at admission.
        choice_index
            Choices of one request have one seed and differ in this.

        Raises
        ------
        KeyError
            The key is taken.
        """
        if key in self._choices:
            raise KeyError(f"a choice named {key!r} is sampling already")
        prompt = tuple(prompt_token_ids) if params.penalize_prompt else ()
        choice = SampledChoice(params, prompt, self.eos_token_ids, seed, choice_index)
        self._choices[key] = choice
        self._layout = None
        if any(kind.is_required_by(choice) for kind in PENALIZERS):
            joining = _PenalizedChoices(self.device, [choice])
            self.orchestrator.merge(BatchedPenalizerOrchestrator(self.vocab_size, joining))
            self._penalized.row_of[key] = len(self._penalized.reqs)
            self._penalized.reqs.append(choice)
            self._penalized.keys.append(key)

    @torch.inference_mode()
    def remove(self, key: Hashable) -> None:
        """End a choice; silent when it is unknown."""
        if self._choices.pop(key, None) is None:
            return
        self._layout = None
        batch = self._penalized
        row = batch.row_of.get(key)
        if row is None:
            return
        keep = [index for index in range(len(batch.reqs)) if index != row]
        batch.reqs = [batch.reqs[index] for index in keep]
        batch.keys = [batch.keys[index] for index in keep]
        batch.row_of = {kept: index for index, kept in enumerate(batch.keys)}
        self.orchestrator.filter(torch.tensor(keep, dtype=torch.int64, device=self.device))

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, rows: Sequence[SampleRow], vocab_mask: torch.Tensor | None = None
    ) -> SampleOutput:
        """Draw, verify drafts and count what was accepted, for all rows at once.

        Parameters
        ----------
        logits
            ``[S, V]`` float32 in row order, ``1 + len(draft_token_ids)`` for each row. Overwritten.
        rows
            Distinct choices.
        vocab_mask
            ``[S, ceil(V / 32)]`` int32, bit 1 = allowed; ``None`` when no row is constrained.

        Raises
        ------
        KeyError
            A row names a choice that was not added.
        ValueError
            The shapes do not fit the rows.
        """
        layout = self._layout_of(rows)
        if logits.shape != (layout.num_positions, self.vocab_size):
            raise ValueError(f"logits are {tuple(logits.shape)}, not {(layout.num_positions, self.vocab_size)}")
        mask_shape = (layout.num_positions, -(-self.vocab_size // 32))
        if vocab_mask is not None and vocab_mask.shape != mask_shape:
            raise ValueError(f"the vocabulary mask is {tuple(vocab_mask.shape)}, not {mask_shape}")
        drafts = layout.drafts(rows, self.device)
        edits = self._edits(layout, layout.penalized(drafts, self.vocab_size), vocab_mask)
        original = _asked_for(logits, layout.logprob_positions, will_change=not edits.is_empty)
        apply_edits(logits, edits)
        token_ids, failed = draw(logits, layout.draw_parameters(rows))
        num_accepted = layout.num_agreeing(drafts, token_ids, failed)
        if layout.penalized_rows is not None:
            index = layout.penalized_index
            drawn = token_ids[layout.padded_index[index]]
            self.orchestrator.count_tokens(layout.penalized_rows, drawn, num_accepted[index] + 1)
        logprobs = None
        if original is not None and layout.logprob_positions is not None:
            logprobs = compute_logprobs(original, token_ids[layout.logprob_positions], layout.most_top_logprobs)
        return SampleOutput(token_ids, num_accepted, failed[layout.starts + num_accepted], logprobs, layout)

    def _layout_of(self, rows: Sequence[SampleRow]) -> SamplingLayout:
        if self._layout is None or self._layout.signature != signature_of(rows):
            self._layout = build_layout(rows, self._choices, self._penalized.row_of, self.vocab_size, self.device)
        return self._layout

    def _edits(
        self, layout: SamplingLayout, penalized: DraftedPositions | None, vocab_mask: torch.Tensor | None
    ) -> LogitEdits:
        penalties: list[CompactPenalties] = []
        suppressions: Suppressions | None = None
        if penalized is not None:
            at = layout.penalized_positions
            penalties = [part.at(at) for part in self.orchestrator.compact(penalized)]
            suppressions = Suppressions.joined([part.at(at) for part in self.orchestrator.suppressions(penalized)])
        mask = join_masks(vocab_mask, layout.allowed_tokens, layout.num_positions)
        return LogitEdits(layout.logit_bias, penalties, suppressions, mask)


def _asked_for(logits: torch.Tensor, positions: torch.Tensor | None, *, will_change: bool) -> torch.Tensor | None:
    """The logits of the given positions as they are now."""
    if positions is None:
        return None
    if len(positions) == len(logits):
        return logits.clone() if will_change else logits
    return logits[positions]
