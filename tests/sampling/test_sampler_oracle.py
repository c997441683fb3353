"""Random lives of batches against the plain Python definition of one request."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling_reference import ReferenceChoice, pack_masks

from sampling.params import SamplingParams
from sampling.sampler import SampleOutput, SampleRow, SamplerState

V = 37
EOS = (2, 5)
CPU = torch.device("cpu")

token_ids = st.integers(0, V - 1)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    def maybe(value: Any, neutral: Any) -> Any:
        return draw(st.one_of(st.just(neutral), value))

    return SamplingParams(
        max_tokens=1000,
        min_tokens=maybe(st.integers(0, 8), 0),
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_p=maybe(st.floats(0.05, 1.0), 1.0),
        top_k=maybe(st.integers(1, V + 3), -1),
        min_p=maybe(st.floats(0.0, 1.0), 0.0),
        repetition_penalty=maybe(st.floats(0.5, 2.0, width=32), 1.0),
        penalize_prompt=draw(st.booleans()),
        frequency_penalty=maybe(st.floats(-2, 2, width=32), 0.0),
        presence_penalty=maybe(st.floats(-2, 2, width=32), 0.0),
        logit_bias=maybe(st.dictionaries(token_ids, st.floats(-100, 100, width=32), max_size=5), {}),
        allowed_token_ids=maybe(st.lists(token_ids, min_size=1, max_size=20).map(tuple), None),
        bad_words_token_ids=maybe(
            st.lists(st.lists(token_ids, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple), ()
        ),
        stop_token_ids=maybe(st.lists(token_ids, max_size=3).map(tuple), ()),
        ignore_eos=draw(st.booleans()),
    )


def tokens_of(output: SampleOutput, rows: list[SampleRow]) -> list[list[int]]:
    tokens, start = [], 0
    for index, row in enumerate(rows):
        taken = int(output.num_accepted[index]) + 1
        tokens.append(output.token_ids[start : start + taken].tolist())
        start += 1 + len(row.draft_token_ids)
    return tokens


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_any_batch_equals_each_request_decoded_alone_in_plain_python(data: st.DataObject) -> None:
    """Joins, ends, drafts of any quality, and rows that sit out a step (preempted, or waiting)."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    state = SamplerState(V, EOS, CPU)
    living: dict[int, ReferenceChoice] = {}
    for step in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(0, 3 if step else 4))):
            choice = ReferenceChoice(
                data.draw(sampling_params()),
                data.draw(st.lists(token_ids, max_size=5)),
                EOS,
                data.draw(st.integers(-(2**63), 2**63 - 1)),
                data.draw(st.integers(0, 127)),
            )
            key = max(living, default=0) + 1
            living[key] = choice
            state.add(key, choice.params, choice.prompt_token_ids, seed=choice.seed, choice_index=choice.choice_index)
        for key in list(living):
            if random.random() < 0.1:
                del living[key]
                state.remove(key)
        chosen = [key for key in random.permutation(list(living)).tolist() if random.random() < 0.8]
        if not chosen:
            continue
        rows, logits, masks = [], [], []
        use_masks = random.random() < 0.5
        for key in chosen:
            own = (random.normal(size=(int(random.integers(1, 5)), V)) * 3).astype(np.float32).round(1)
            own_masks = [
                (random.random(V) < 0.4).tolist() if use_masks and random.random() < 0.7 else None for _ in own
            ]
            for mask in own_masks:
                if mask is not None and not any(mask):
                    mask[0] = True
            drafts = good_drafts(living[key], own, own_masks, random)
            rows.append(SampleRow(key, len(living[key].output_token_ids), drafts))
            logits.append(own)
            masks += own_masks
        vocab_mask = torch.from_numpy(pack_masks(masks, V)) if use_masks else None
        output = state.sample(torch.from_numpy(np.concatenate(logits)), rows, vocab_mask)
        assert not output.failed.any()
        start = 0
        expected = []
        for row, own in zip(rows, logits, strict=True):
            own_masks = masks[start : start + len(own)]
            expected.append(living[row.key].step(own, row.draft_token_ids, own_masks))
            start += len(own)
        assert tokens_of(output, rows) == expected


def good_drafts(
    choice: ReferenceChoice, logits: np.ndarray, masks: list[list[bool] | None], random: np.random.Generator
) -> tuple[int, ...]:
    """What plain decoding would give, spoiled now and then, sometimes by ids outside the vocabulary."""
    drafts: list[int] = []
    for index in range(len(logits) - 1):
        right = choice.draw(
            choice.edited(logits[index], drafts_in_range(drafts), masks[index]), len(choice.output_token_ids) + index
        )
        spoiled = random.random() < 0.15
        drafts.append(int(random.choice([-7, V, 2**40, int(random.integers(V))])) if spoiled else right)
    return tuple(drafts)


def drafts_in_range(drafts: list[int]) -> list[int]:
    return [token_id if 0 <= token_id < V else 0 for token_id in drafts]
