from __future__ import annotations

import random

import jsonschema
import pytest

from bench.serve.schemas import FORMS, fresh_names, same_name
from bench.serve.workloads import SUITES, WORKLOAD_NAMES, Job, make_workload


def jobs(name: str, seed: str = "1", count: int = 9) -> list[Job]:
    return make_workload(name, seed).jobs(seed, count)


def prompts(name: str, seed: str = "1") -> list[str]:
    return [job.messages[-1]["content"] for job in jobs(name, seed)]


@pytest.mark.parametrize("name", WORKLOAD_NAMES)
def test_same_seed_asks_the_same_and_another_seed_something_else(name: str) -> None:
    assert jobs(name) == jobs(name)
    assert not set(prompts(name)) & set(prompts(name, "2"))
    assert len(set(prompts(name))) == 9


def test_unconstrained_twin_differs_in_its_first_word_alone() -> None:
    for name in ("structured-plain", "structured-cold"):
        for ours, twin in zip(prompts("structured"), prompts(name), strict=True):
            assert ours.split()[0] != twin.split()[0]
            assert ours.split()[1:] == twin.split()[1:]
    assert not any(job.constrained for job in jobs("structured-plain"))
    assert all(job.schema is not None for job in jobs("structured-plain"))


def test_cold_schemas_are_all_new_and_warm_ones_are_three() -> None:
    assert len({str(job.schema) for job in jobs("structured-cold", count=60)}) == 60
    assert len({str(job.schema) for job in jobs("structured", count=60)}) == len(FORMS) == 3


def test_shared_prefix_is_one_system_prompt_for_all_requests_of_a_seed() -> None:
    systems = {job.messages[0]["content"] for job in jobs("shared-prefix")}
    assert len(systems) == 1
    assert 850 <= len(systems.pop().split()) <= 1000
    assert jobs("shared-prefix", "2")[0].messages[0] != jobs("shared-prefix")[0].messages[0]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_schemas_are_valid_and_closed(form: object) -> None:
    for rename in (same_name, fresh_names(random.Random(0))):
        schema = form.schema(rename)  # type: ignore[attr-defined]
        jsonschema.Draft202012Validator.check_schema(schema)
        assert not jsonschema.Draft202012Validator(schema).is_valid({})
        assert not jsonschema.Draft202012Validator(schema).is_valid({"surprise": 1})


def test_suites_hold_known_workloads() -> None:
    assert all(name in WORKLOAD_NAMES for names in SUITES.values() for name in names)


def test_unknown_workload_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown workload 'nothing'"):
        make_workload("nothing", "1")
