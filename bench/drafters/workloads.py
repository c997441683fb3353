"""Requests whose answers are compared and timed: varied ones, schemas with much and little forced text, prose."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from bench.serve import prose
from constrained.spec import GrammarSpec, ReasoningSpec
from sampling.params import SamplingParams
from scheduler.messages import GenerateRequest

Encode = Callable[[str], list[int]]

_WORDS = ("order", "parcel", "kettle", "garden", "ticket", "museum", "violin", "harbour")


def chat(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT = {"type": "string", "maxLength": 24}
FORCED = _object(
    {
        "shipment_reference": {"type": "string", "maxLength": 12},
        "destination_country": {"type": "string", "maxLength": 12},
        "estimated_delivery_days": {"type": "integer", "minimum": 1, "maximum": 60},
        "requires_signature": {"type": "boolean"},
        "contact_information": _object({"full_name": _TEXT, "phone_number": {"type": "string", "maxLength": 12}}),
    }
)
"""Long keys, short values."""
FLIGHT = _object(
    {
        "departure_location": {"type": "string", "maxLength": 20},
        "departure_date": {"type": "string", "format": "date"},
        "travel_class": {"enum": ["economy", "premium_economy", "business", "first"]},
        "number_of_passengers": {"type": "integer", "minimum": 1, "maximum": 9},
    }
)
"""Arguments of a function, as agents fill them in."""
WEATHER = _object(
    {
        "location": {"type": "string", "maxLength": 40},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "num_days": {"type": "integer", "minimum": 1, "maximum": 14},
    }
)
"""Short keys, short values."""
FREE = _object({"title": {"type": "string", "maxLength": 60}, "summary": {"type": "string", "maxLength": 240}})
"""Short keys, long values."""


def structured(schema: dict[str, Any], count: int, encode: Encode, *, max_tokens: int = 200) -> list[GenerateRequest]:
    """Greedy requests that show the schema to the model, as applications do."""
    text = json.dumps(schema)
    return [
        GenerateRequest(
            request_id=f"structured-{index}",
            prompt_token_ids=encode(
                chat(f"Answer in compact JSON that fits this schema: {text}\nSubject {index}: the {_word(index)}.")
            ),
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=index),
            grammar=GrammarSpec(kind="json_schema", value=text),
        )
        for index in range(count)
    ]


def unrepeated(count: int, encode: Encode, *, max_tokens: int) -> list[GenerateRequest]:
    """Text that never repeats: draws at a high temperature from all tokens."""
    return [
        GenerateRequest(
            request_id=f"unrepeated-{index}",
            prompt_token_ids=encode(prose.paragraph(random.Random(index), 40)),
            sampling=SamplingParams(max_tokens=max_tokens, temperature=2.0, seed=index, ignore_eos=True),
        )
        for index in range(count)
    ]


def copying(count: int, encode: Encode, *, max_tokens: int) -> list[GenerateRequest]:
    """Answers that repeat their prompts."""
    requests = []
    for index in range(count):
        text = prose.paragraph(random.Random(index), 60)
        requests.append(
            GenerateRequest(
                request_id=f"copying-{index}",
                prompt_token_ids=encode(chat(f"Repeat this text word for word:\n{text}")),
                sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
            )
        )
    return requests


_JSON_FORCED = GrammarSpec(kind="json_schema", value=json.dumps(FORCED))
_JSON_FREE = GrammarSpec(kind="json_schema", value=json.dumps(FREE))
_TOOL = GrammarSpec(
    kind="structural_tag",
    value=json.dumps(
        {
            "type": "structural_tag",
            "format": {
                "type": "tag",
                "begin": "<tool_call>",
                "content": {
                    "type": "json_schema",
                    "json_schema": _object({"city": _TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}}),
                },
                "end": "</tool_call>",
            },
        }
    ),
)
_ALTERNATIVES = GrammarSpec(kind="regex", value="(yes|no), because [a-z ]{5,30}\\.")
_PATTERN = GrammarSpec(kind="regex", value="[A-Z]{2}-20[0-9]{2}-naïve", backend="outlines")
_RULES = GrammarSpec(kind="ebnf", value='root ::= "total: " number " of " number\nnumber ::= [1-9] [0-9]?')
_KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.9, "top_p": 0.9, "n": 3},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 0.7, "presence_penalty": 0.5, "top_k": 40},
    {"stop": (b"the", b". "), "temperature": 0.8},
    {"logprobs": 3, "min_tokens": 8},
    {"grammar": _JSON_FORCED},
    {"grammar": _JSON_FREE, "temperature": 1.0},
    {"grammar": _JSON_FORCED, "temperature": 1.0, "n": 3},
    {"grammar": _JSON_FORCED, "temperature": 0.6, "repetition_penalty": 1.2, "logprobs": 0},
    {"grammar": _ALTERNATIVES},
    {"grammar": _PATTERN, "temperature": 1.0},
    {"grammar": _RULES, "temperature": 1.0, "stop": (b"of",)},
    {"grammar": _JSON_FREE, "thinking": 12},
    {"grammar": _TOOL, "temperature": 0.5},
    {"grammar": _TOOL, "thinking": 6, "temperature": 1.0},
    {"prediction": True},
    {"prediction": True, "temperature": 0.4, "stop": (b"\n\n",)},
]
NUM_KINDS = len(_KINDS)
_LENGTHS = (1.0, 0.2, 0.4)


def varied(count: int, encode: Encode, *, max_tokens: int) -> list[GenerateRequest]:
    """Every kind of request in turn, with other prompts, seeds and lengths each round."""
    requests = []
    for index in range(count):
        options = dict(_KINDS[index % NUM_KINDS])
        grammar, budget = options.pop("grammar", None), options.pop("thinking", None)
        predicted = options.pop("prediction", False)
        subject = f"{_word(index)} {index}"
        prompt = f"Write about the {subject}." if grammar is None else f"Give me data on the {subject} in JSON."
        length = max(8, int(max_tokens * _LENGTHS[index // NUM_KINDS % len(_LENGTHS)]))
        reasoning = None
        if budget is not None:
            reasoning = ReasoningSpec(think_end_ids=tuple(encode("</think>")), is_thinking=True, budget=budget)
        requests.append(
            GenerateRequest(
                request_id=f"varied-{index}",
                prompt_token_ids=encode(chat(prompt)),
                sampling=SamplingParams(**{"max_tokens": length, "temperature": 0.0, "seed": index, **options}),
                grammar=grammar,
                reasoning=reasoning,
                prediction_token_ids=encode(f"The {subject} is a great choice for anyone.") if predicted else [],
            )
        )
    return requests


def _word(index: int) -> str:
    return _WORDS[index % len(_WORDS)]
