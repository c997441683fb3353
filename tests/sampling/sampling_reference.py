"""The definition of sampling, one request and one token at a time, in plain Python: the oracle of the tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sampling.params import SamplingParams

LOW = 0xFFFFFFFF


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 over Python integers."""
    x = list(counter)
    k = list(key)
    for _ in range(10):
        first, second = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [(second >> 32) ^ x[1] ^ k[0], second & LOW, (first >> 32) ^ x[3] ^ k[1], first & LOW]
        k = [(k[0] + 0x9E3779B9) & LOW, (k[1] + 0xBB67AE85) & LOW]
    return x


def token_bits(seed: int, choice: int, position: int, token_id: int) -> int:
    word = seed & 0xFFFFFFFFFFFFFFFF
    key = philox([position, choice, 0, 0], [word & LOW, word >> 32])
    bits = token_id ^ key[0]
    for index, (shift, multiplier) in enumerate(((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))):
        bits ^= bits >> shift
        bits = (bits * multiplier) & LOW
        bits ^= key[index + 1]
    return bits ^ (bits >> 14)


def gumbel(bits: int) -> float:
    return -math.log(-math.log1p(-(bits + 0.5) * 2.0**-32))


@dataclass
class ReferenceChoice:
    """One choice, decoded plainly."""

    params: SamplingParams
    prompt_token_ids: list[int]
    eos_token_ids: tuple[int, ...]
    seed: int
    choice_index: int = 0
    output_token_ids: list[int] = field(default_factory=list)

    def edited(self, logits: np.ndarray, ahead: Sequence[int] = (), mask: Sequence[bool] | None = None) -> np.ndarray:
        """Logits ``[V]`` float32 after every edit, behind the output and the tokens ``ahead``."""
        params = self.params
        output = [*self.output_token_ids, *ahead]
        edited = logits.astype(np.float32).copy()
        for token_id, bias in params.logit_bias.items():
            edited[token_id] += np.float32(bias)
        seen = set(output) | (set(self.prompt_token_ids) if params.penalize_prompt else set())
        for token_id in seen:
            value, count = edited[token_id], output.count(token_id)
            if params.repetition_penalty != 1.0:
                factor = np.float32(params.repetition_penalty)
                value = value / factor if value > 0 else value * factor
            additive = np.float32(0)
            additive -= np.float32(count) * np.float32(params.frequency_penalty)
            additive -= np.float32(count > 0) * np.float32(params.presence_penalty)
            edited[token_id] = value + additive
        allowed = np.ones(len(logits), bool) if mask is None else np.array(mask)
        if params.allowed_token_ids is not None:
            listed = np.zeros(len(logits), bool)
            listed[list(params.allowed_token_ids)] = True
            allowed = allowed & listed if (allowed & listed).any() else allowed
        edited[~allowed] = -np.inf
        suppressed = edited.copy()
        suppressed[sorted(self._suppressed(output))] = -np.inf
        return edited if np.isneginf(suppressed).all() else suppressed

    def draw(self, edited: np.ndarray, position: int) -> int:
        """One token from edited logits, by the definition."""
        params = self.params
        if params.temperature == 0:
            return int(edited.argmax())
        kept = kept_tokens(edited, params)
        highest = float(edited.max())
        scores = {
            token_id: (float(edited[token_id]) - highest) / params.temperature
            + gumbel(token_bits(self.seed, self.choice_index, position, token_id))
            for token_id in kept
        }
        best = max(scores.values())
        return min(token_id for token_id, score in scores.items() if score == best)

    def step(self, logits: np.ndarray, drafts: Sequence[int], masks: Sequence[Sequence[bool] | None]) -> list[int]:
        """Tokens of one step with drafts: plain decoding as long as the drafts agree."""
        drawn = []
        for index, row in enumerate(logits):
            token_id = self.draw(self.edited(row, mask=masks[index]), len(self.output_token_ids))
            self.output_token_ids.append(token_id)
            drawn.append(token_id)
            if index == len(drafts) or drafts[index] != token_id:
                break
        return drawn

    def _suppressed(self, output: Sequence[int]) -> set[int]:
        suppressed: set[int] = set()
        if len(output) < self.params.min_tokens:
            suppressed |= set(self.params.stop_token_ids)
            if not self.params.ignore_eos:
                suppressed |= set(self.eos_token_ids)
        for word in self.params.bad_words_token_ids:
            prefix = list(word[:-1])
            if not prefix or list(output[-len(prefix) :]) == prefix:
                suppressed.add(word[-1])
        return suppressed


def kept_tokens(edited: np.ndarray, params: SamplingParams) -> list[int]:
    """Ids that top-k, then top-p, then min-p keep, most likely first."""
    finite = [token_id for token_id in range(len(edited)) if edited[token_id] > -np.inf]
    ordered = sorted(finite, key=lambda token_id: (-edited[token_id], token_id))
    if params.top_k > 0:
        ordered = ordered[: params.top_k]
    highest = float(edited[ordered[0]])
    scaled = {token_id: (float(edited[token_id]) - highest) / params.temperature for token_id in ordered}
    weights = {token_id: math.exp(value) for token_id, value in scaled.items()}
    if params.top_p < 1.0:
        total, before, nucleus = sum(weights.values()), 0.0, []
        for token_id in ordered:
            if before < params.top_p * total:
                nucleus.append(token_id)
            before += weights[token_id]
        ordered = nucleus
    if params.min_p > 0.0:
        ordered = [token_id for token_id in ordered if scaled[token_id] >= math.log(params.min_p)]
    return ordered


def probabilities(edited: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The exact distribution of a draw: ``[V]`` float64."""
    kept = kept_tokens(edited, params)
    scaled = edited[kept].astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    result = np.zeros(len(edited))
    result[kept] = weights / weights.sum()
    return result


def pack_masks(masks: Sequence[Sequence[bool] | None], vocab_size: int) -> np.ndarray:
    """``[S, ceil(V / 32)]`` int32 words; ``None`` allows everything."""
    words = -(-vocab_size // 32)
    packed = np.zeros((len(masks), words), np.int32)
    for row, mask in enumerate(masks):
        bits = np.zeros(words * 32, np.uint8)
        bits[:vocab_size] = 1 if mask is None else np.array(mask, np.uint8)
        packed[row] = np.packbits(bits, bitorder="little").view(np.int32)
    return packed
