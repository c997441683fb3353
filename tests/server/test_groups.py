"""Several groups behind one HTTP process: who gets which request, and what happens when a group goes or comes back."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

TEXT = "/v1/completions"
LONG = "hello world, the quick brown fox jumps over the lazy dog. " * 20


@pytest.fixture
def groups(make_server):
    return make_server(num_groups=2)


def counts(server):
    return [len(fake.requests()) for fake in server.schedulers]


def group_of(server, text):
    """Which group got the prompt."""
    token_ids = server.context.tokenizer.encode_prompt(text)
    return [
        index
        for index, fake in enumerate(server.schedulers)
        for request in fake.requests()
        if request.prompt_token_ids == token_ids
    ]


def ask(server, prompt, **options):
    answer = server.post(TEXT, {"prompt": prompt, "max_tokens": 2, **options})
    assert answer.status_code == 200, answer.text
    return answer


def test_a_conversation_stays_where_its_beginning_is(groups):
    openings = [f"{index} {LONG}" for index in range(4)]
    for opening in openings:
        ask(groups, opening)
    assert counts(groups) == [2, 2], "new conversations are spread"
    for opening in openings:
        for turn in range(1, 4):
            ask(groups, opening + "and so on " * turn)
    homes = [group_of(groups, opening) for opening in openings]
    for opening, home in zip(openings, homes, strict=True):
        for turn in range(1, 4):
            assert group_of(groups, opening + "and so on " * turn) == home


def test_requests_at_once_are_spread_though_they_begin_alike(groups, wait_until):
    for fake in groups.schedulers:
        fake.behaviour.is_stalled = True
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(ask, groups, f"the quick brown fox {index}") for index in range(8)]
        wait_until(lambda: sum(counts(groups)) == 8)
        for fake in groups.schedulers:
            fake.behaviour.is_stalled = False
        for future in futures:
            future.result(10)
    assert counts(groups) == [4, 4]
    assert [group.num_choices for group in groups.context.engine.groups] == [0, 0]


def test_a_cached_beginning_does_not_outweigh_a_group_that_is_far_busier(groups, wait_until):
    ask(groups, LONG)
    home = group_of(groups, LONG)[0]
    groups.schedulers[home].behaviour.is_stalled = True
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(ask, groups, LONG + "busy", n=64)
        wait_until(lambda: groups.schedulers[home].num_running == 64)
        ask(groups, LONG + "next")
        assert group_of(groups, LONG + "next") == [1 - home]
        groups.schedulers[home].behaviour.is_stalled = False
        busy.result(10)


def test_the_prompts_of_one_request_are_spread_and_answered_in_order(groups):
    prompts = [letter * 3 for letter in "abcdefgh"]
    answer = groups.post(TEXT, {"prompt": prompts, "max_tokens": 3, "n": 2}).json()
    assert counts(groups) == [4, 4]
    assert [choice["text"] for choice in answer["choices"]] == [prompt for prompt in prompts for _ in range(2)]


def test_a_group_that_dies_ends_its_own_requests_alone_and_comes_back(groups, wait_until):
    for fake in groups.schedulers:
        fake.behaviour.step_seconds = 0.02
        fake.behaviour.tokens_of = lambda request, choice: [70] * 60
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(groups.post, TEXT, {"prompt": "x", "max_tokens": 60, "stream": True}) for _ in range(4)]
        wait_until(lambda: [fake.num_running for fake in groups.schedulers] == [2, 2])
        time.sleep(0.1)
        groups.schedulers[0].stop()
        died = time.monotonic()
        wait_until(lambda: groups.context.engine.groups[0].ready is None)
        assert time.monotonic() - died < 3.0
        assert groups.get("/health").status_code == 200
        ask(groups, "meanwhile")
        answers = [future.result(10).text for future in futures]
    failed = [text for text in answers if "event: error" in text]
    assert len(failed) == 2
    assert all(json.loads(text.split("data: ")[-1])["error"]["code"] == "engine_unavailable" for text in failed)
    assert all(text.endswith("data: [DONE]\n\n") for text in answers if text not in failed)
    assert "1" not in group_of(groups, "meanwhile")
    groups.schedulers[0].start()
    groups.wait_ready()
    before = counts(groups)[0]
    ask(groups, ["one", "two"])
    assert counts(groups)[0] == before + 1


def test_only_without_any_group_is_the_server_unready(groups, wait_until):
    groups.schedulers[0].stop()
    wait_until(lambda: groups.context.engine.groups[0].ready is None)
    assert groups.get("/health").status_code == 200
    metrics = groups.get("/metrics").text
    assert 'scansion_scheduler_up{group="0"} 0.0' in metrics
    assert 'scansion_scheduler_up{group="1"} 1.0' in metrics
    groups.schedulers[1].stop()
    wait_until(lambda: groups.get("/health").status_code == 503)
    refused = groups.post(TEXT, {"prompt": "x"})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_unavailable"
    assert groups.post("/flush_cache").status_code == 503
    groups.schedulers[1].start()
    wait_until(lambda: groups.get("/health").status_code == 200)


@pytest.mark.parametrize("how", ["restart", "flush"])
def test_a_group_whose_cache_is_empty_is_known_to_be(groups, wait_until, how):
    ask(groups, LONG)
    home = group_of(groups, LONG)[0]
    engine_group = groups.context.engine.groups[home]
    assert len(engine_group.prefixes) > 0
    if how == "flush":
        assert groups.post("/flush_cache").json() == {"freed_tokens": 14}
    else:
        groups.schedulers[home].stop()
        wait_until(lambda: engine_group.ready is None)
        groups.schedulers[home].start()
        groups.wait_ready()
    assert len(engine_group.prefixes) == 0


def test_counters_and_gauges_are_told_by_group_and_added_up(groups):
    info = groups.get("/server_info").json()
    assert info["stats"]["prompt_tokens_total"] == 200
    assert info["stats"]["kv_tokens_capacity"] == 2 * 4096
    assert [group["stats"]["prompt_tokens_total"] for group in info["groups"]] == [100, 100]
    metrics = groups.get("/metrics").text
    for group in "01":
        assert f'scansion_scheduler_prompt_tokens_total{{group="{group}"}} 100.0' in metrics
        assert f'scansion_grammar_compile_seconds_total{{group="{group}"}} 1.5' in metrics
    assert metrics.count("# TYPE scansion_running_requests gauge") == 1


def test_one_group_has_no_label(server):
    metrics = server.get("/metrics").text
    assert re.search(r"^scansion_running_requests 0.0$", metrics, re.MULTILINE)
    assert "group=" not in metrics


def test_an_abort_reaches_the_group_that_has_the_request(groups, wait_until):
    for fake in groups.schedulers:
        fake.behaviour.is_stalled = True
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(groups.post, TEXT, {"prompt": letter}) for letter in "ab"]
        wait_until(lambda: [fake.num_running for fake in groups.schedulers] == [1, 1])
        assert groups.post("/abort_request", {"abort_all": True}).json() == {"aborted": 2}
        assert [future.result(10).status_code for future in futures] == [409, 409]
