"""Drafts through the whole server: fewer steps, the same answer, honest counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {
        "destination_country": {"type": "string", "maxLength": 10},
        "requires_signature": {"type": "boolean"},
        "estimated_delivery_days": {"type": "integer", "minimum": 1, "maximum": 60},
    },
    "required": ["destination_country", "requires_signature", "estimated_delivery_days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def drafting_server(start_server: Callable[..., Any]) -> Any:
    running = start_server(
        "--dtype", "float32", "--kv-cache-tokens", "4096", "--json-whitespace", "compact", "--speculative", "ngram"
    )
    running.wait_ready()
    return running


def samples(server: Any) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(server.get("/metrics").text)
    return {(s.name, s.labels.get("drafter", "")): s.value for family in families for s in family.samples}


def answer(server: Any, **fields: Any) -> tuple[dict[str, Any], float]:
    """The answer, and the steps it took."""
    prompt = f"Describe a parcel in JSON that fits {json.dumps(SCHEMA)}"
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 60, **fields}
    before = samples(server)["scansion_scheduler_steps_total", ""]
    response = server.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    whole: dict[str, Any] = response.json()
    return whole, samples(server)["scansion_scheduler_steps_total", ""] - before


def test_a_schema_is_answered_in_fewer_steps_and_the_same_words(drafting_server: Any) -> None:
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "parcel", "schema": SCHEMA}}}
    plain, plain_steps = answer(drafting_server, speculative=False, **form)
    before = samples(drafting_server)
    answer(drafting_server, **form)
    drafted, drafted_steps = answer(drafting_server, **form)
    assert drafted["choices"] == plain["choices"]
    assert drafted_steps <= 0.6 * plain_steps
    after = samples(drafting_server)
    accepted = ("scansion_draft_tokens_accepted_total", "grammar")
    assert after[accepted] - before[accepted] > 20
    assert after["scansion_draft_steps_saved_total", ""] >= after[accepted]
    assert after["scansion_draft_accepted_length_count", "grammar"] > 0


def test_a_prediction_spares_steps_and_is_counted(drafting_server: Any) -> None:
    plain, plain_steps = answer(drafting_server, speculative=False)
    text = plain["choices"][0]["message"]["content"]
    predicted, steps = answer(drafting_server, prediction={"type": "content", "content": text})
    assert predicted["choices"] == plain["choices"]
    assert steps < 0.6 * plain_steps
    details = predicted["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 20
    assert predicted["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


@pytest.mark.parametrize("prediction", ["text", {"type": "content"}, {"type": "content", "content": [{"type": "x"}]}])
def test_a_prediction_of_another_form_is_a_400(drafting_server: Any, prediction: Any) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "prediction": prediction}
    response = drafting_server.post(CHAT, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prediction")
