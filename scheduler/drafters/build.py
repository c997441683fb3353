"""From settings to the drafter of a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.config import SchedulerConfig
from scheduler.drafters.combination import CombinedDrafter
from scheduler.drafters.grammar import MIN_FORCED_TOKENS, GrammarDrafter
from scheduler.drafters.ngram import NgramDrafter
from scheduler.drafters.prediction import PredictionDrafter
from scheduler.drafters.retokenize import Encoder, Retokenizer
from scheduler.drafters.source import DraftSource


def build_drafter(
    config: SchedulerConfig,
    encoder: Encoder,
    token_bytes: Sequence[bytes],
    vocab_size: int,
    draft_model: DraftSource | None = None,
    min_forced_tokens: int = MIN_FORCED_TOKENS,
) -> CombinedDrafter:
    """The sources that ``config`` asks for, surest first.

    Parameters
    ----------
    encoder
        The model's tokenizer, to spell what a grammar forces.
    token_bytes
        Visible bytes of each token id: empty for special tokens.
    vocab_size
        Width of the logits.
    draft_model
        The source of ``--speculative draft-model``.
    min_forced_tokens
        Shorter forced runs are left to plain decoding.
    """
    sources: list[DraftSource] = []
    if config.jump_forward:
        sources.append(GrammarDrafter(Retokenizer(encoder, token_bytes), token_bytes, min_forced_tokens))
    sources.append(PredictionDrafter(config.max_draft_tokens))
    if config.speculative == "ngram":
        sources.append(NgramDrafter(config.max_draft_tokens))
    elif draft_model is not None:
        sources.append(draft_model)
    return CombinedDrafter(sources, vocab_size)
