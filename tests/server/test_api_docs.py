"""``docs/api.md`` says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import constrained.errors
import server.errors
from constrained.errors import GrammarError
from scheduler.requests import admission
from server.chat.protocol import ChatCompletionRequest
from server.completions.protocol import CompletionRequest
from server.errors import ApiError
from server.http.documentation import ErrorBody, ErrorDetail
from server.ignored_fields import IGNORED_FIELDS, IGNORED_NESTED_FIELDS, REFUSED_FIELDS, as_table
from server.metrics.scheduler import FURTHER_COUNTERS

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
FIELD_CELLS = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("|"))


@pytest.mark.parametrize("fields", [IGNORED_FIELDS, IGNORED_NESTED_FIELDS, REFUSED_FIELDS])
def test_the_published_lists_are_the_codes_own(fields):
    assert as_table(fields) in PAGE


@pytest.mark.parametrize("name", sorted({*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields}))
def test_every_field_has_a_row(name):
    assert f"`{name}`" in FIELD_CELLS


def test_every_endpoint_is_named(shared_server):
    for path in shared_server.get("/openapi.json").json()["paths"]:
        assert path.replace("model_id", "id") in PAGE


def test_openapi_describes_every_field_in_words(shared_server):
    for name, schema in shared_server.get("/openapi.json").json()["components"]["schemas"].items():
        for field, described in schema["properties"].items():
            assert described.get("description"), f"{name}.{field}"
            assert "title" not in described, f"{name}.{field}"
            assert ":mod:" not in described["description"], f"{name}.{field}"


def test_openapi_lists_the_errors_of_every_endpoint(shared_server):
    for path, operations in shared_server.get("/openapi.json").json()["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            assert "422" not in answers, path
            assert set(answers) > {"200"}, path
            assert ("413" in answers) == ("requestBody" in operation), path
            for status, answer in answers.items():
                assert status == "200" or re.search(rf"\| {status} \|", PAGE), status
                if status != "200" and path != "/health":
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/ErrorBody"}


def test_openapis_error_body_is_the_one_that_is_sent(shared_server):
    sent = shared_server.get("/v1/models/nothing").json()
    ErrorBody.model_validate(sent)
    assert set(sent["error"]) == set(ErrorDetail.model_fields)


def test_every_metric_an_operator_is_told_of_exists(shared_server):
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    shown = shared_server.get("/metrics").text + " ".join(f"scansion_{name} " for name in FURTHER_COUNTERS)
    named = set(re.findall(r"scansion_[a-z_]+", page))
    assert len(named) > 8
    for name in named:
        assert re.search(rf"\b{name.removesuffix('_bucket')}\b", shown), name


def test_every_status_and_code_of_an_error_class_is_in_the_table():
    for kind in vars(server.errors).values():
        if isinstance(kind, type) and issubclass(kind, ApiError) and kind is not ApiError and kind.default_code:
            assert re.search(rf"\| {kind.status} \| [^|]*`{kind.default_code}`", PAGE), kind


def test_every_code_of_a_refused_constraint_is_in_the_table():
    kinds = [k for k in vars(constrained.errors).values() if isinstance(k, type) and issubclass(k, GrammarError)]
    codes = {(kind.status, kind.code) for kind in kinds if kind.code} | {
        (400, code) for code in admission.INVALID_CODES.values()
    }
    assert len(codes) > 8
    for status, code in codes:
        assert re.search(rf"\| {status} \| [^|]*`{code}`", PAGE), code
