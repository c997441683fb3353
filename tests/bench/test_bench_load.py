from __future__ import annotations

import itertools
import time
from types import ModuleType
from typing import Any

import pytest

from bench.serve.answer import Answer, read_answer
from bench.serve.client import Exchange, Sending, Target
from bench.serve.load import Arrivals, ClosedLoop, Load, PoissonArrivals, arrival_times, run_load
from bench.serve.workloads import make_workload

QUICK = Sending(timeout_seconds=1.0, stall_seconds=0.3)


async def measure(
    url: str,
    *,
    name: str = "chat",
    arrivals: Arrivals | None = None,
    num_jobs: int = 4,
    sending: Sending = QUICK,
    api_key: str | None = None,
) -> Load:
    target = Target(label="fake", base_url=url, model="fake-model", api_key=api_key)
    return await run_load(
        target,
        make_workload(name, "1"),
        arrivals or ClosedLoop(num_clients=2),
        sending,
        seed="1",
        num_jobs=num_jobs,
    )


def read(load: Load) -> list[Answer]:
    return [read_answer(item) for item in load.exchanges]


async def test_good_answers_are_counted(fake_openai: ModuleType) -> None:
    fake = fake_openai.FakeOpenAI()
    fake.gap_seconds = 0.02
    async with fake.serve() as url:
        load = await measure(url)
    answers = read(load)
    assert [answer.failure for answer in answers] == [None] * 4
    assert [answer.output_tokens for answer in answers] == [3] * 4
    assert {answer.prompt_tokens for answer in answers} == {7}
    assert {answer.cached_tokens for answer in answers} == {4}
    assert all(answer.time_to_first_token is not None and answer.time_to_first_token >= 0.02 for answer in answers)
    assert all(gap > 0.005 for answer in answers for gap in answer.gaps)
    assert load.seconds >= 2 * 3 * 0.02


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        ("refuse", "http_status"),
        ("redirect", "http_status"),
        ("stall", "stalled"),
        ("drip", "timeout"),
        ("close", "closed"),
        ("quiet_end", "closed"),
        ("error_event", "error_event"),
        ("garbage", "malformed"),
        ("empty", "no_tokens"),
    ],
)
async def test_every_way_to_fail_is_one_counted_error(fake_openai: ModuleType, way: str, kind: str) -> None:
    warm_up = make_workload("chat", "1").num_warm_up
    fake = fake_openai.FakeOpenAI(lambda body, index: way if index == warm_up + 1 else "answer")
    began = time.perf_counter()
    async with fake.serve() as url:
        answers = read(await measure(url))
    assert time.perf_counter() - began < 10
    failures = [answer.failure for answer in answers if answer.failure is not None]
    assert [failure.kind for failure in failures] == [kind]
    assert len(answers) == 4


async def test_nobody_listening_is_a_connect_error() -> None:
    answers = read(await measure("http://127.0.0.1:9/v1", num_jobs=2))
    assert [answer.failure.kind for answer in answers if answer.failure is not None] == ["connect"] * 2


async def test_error_message_of_the_server_is_kept(fake_openai: ModuleType) -> None:
    async with fake_openai.FakeOpenAI(lambda body, index: "refuse").serve() as url:
        answers = read(await measure(url, num_jobs=1))
    assert answers[0].failure is not None
    assert "no room" in answers[0].failure.message


async def test_closed_loop_keeps_as_many_requests_running_as_it_has_clients(fake_openai: ModuleType) -> None:
    fake = fake_openai.FakeOpenAI()
    fake.gap_seconds = 0.02
    async with fake.serve() as url:
        await measure(url, arrivals=ClosedLoop(num_clients=3), num_jobs=9)
    assert fake.most_running == 3


async def test_poisson_arrivals_do_not_wait_for_answers(fake_openai: ModuleType) -> None:
    fake = fake_openai.FakeOpenAI()
    fake.gap_seconds = 0.1
    async with fake.serve() as url:
        load = await measure(url, arrivals=PoissonArrivals(rate=100), num_jobs=10)
    begun = sorted(item.started for item in load.exchanges)
    due = arrival_times(100, 10, "1")
    assert fake.most_running >= 5
    assert all(start - begun[0] == pytest.approx(planned, abs=0.08) for start, planned in zip(begun, due, strict=True))


def test_poisson_arrivals_have_the_rate_and_spread_of_their_law() -> None:
    times = arrival_times(5.0, 4001, "seed")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.2, rel=0.05)
    assert deviation == pytest.approx(mean, rel=0.08)
    assert times[0] == 0.0
    assert times == arrival_times(5.0, 4001, "seed")


async def test_turns_carry_the_answers_before_them(fake_openai: ModuleType) -> None:
    fake = fake_openai.FakeOpenAI()
    async with fake.serve() as url:
        load = await measure(url, name="multi-turn", num_jobs=1, arrivals=ClosedLoop(num_clients=1))
    last = fake.bodies[-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant"] * 3 + ["user"]
    assert {message["content"] for message in last if message["role"] == "assistant"} == {"one two three"}
    assert [item.turn for item in load.exchanges] == [0, 1, 2, 3]


async def test_failed_turn_ends_its_conversation(fake_openai: ModuleType) -> None:
    # The first conversation, of four turns, warms up.
    fake = fake_openai.FakeOpenAI(lambda body, index: "refuse" if index == 5 else "answer")
    async with fake.serve() as url:
        load = await measure(url, name="multi-turn", num_jobs=2, arrivals=ClosedLoop(num_clients=1))
    assert [(item.turn, read_answer(item).failure is None) for item in load.exchanges] == [
        (0, True),
        (1, False),
        (0, True),
        (1, True),
        (2, True),
        (3, True),
    ]


async def test_warm_up_asks_other_prompts_and_is_not_counted(fake_openai: ModuleType) -> None:
    fake = fake_openai.FakeOpenAI()
    async with fake.serve() as url:
        load = await measure(url, num_jobs=3)
    prompts = [body["messages"][0]["content"] for body in fake.bodies]
    assert len(load.exchanges) == 3
    assert len(set(prompts)) == len(prompts) == 5


async def test_extensions_are_sent_only_where_asked(fake_openai: ModuleType) -> None:
    async def body_of(name: str, sending: Sending) -> dict[str, Any]:
        fake = fake_openai.FakeOpenAI()
        async with fake.serve() as url:
            await measure(url, name=name, num_jobs=1, sending=sending)
        return dict(fake.bodies[-1])

    plain = await body_of("chat", QUICK)
    assert plain["ignore_eos"] is True
    assert plain["stream_options"] == {"include_usage": True}
    bare = await body_of("chat", Sending(ignore_eos=False, drop_fields=frozenset({"stream_options"})))
    assert "ignore_eos" not in bare
    assert "stream_options" not in bare
    structured = await body_of("structured", Sending(extra_body={"top_k": 1}))
    assert "ignore_eos" not in structured
    assert structured["top_k"] == 1
    assert structured["response_format"]["json_schema"]["strict"] is True


async def test_token_ids_of_the_server_count_its_tokens(fake_openai: ModuleType) -> None:
    async with fake_openai.FakeOpenAI().serve() as url:
        load = await measure(url, num_jobs=1, sending=Sending(extra_body={"return_token_ids": True}))
    assert read(load)[0].arrival_token_counts == [2, 2, 2]


async def test_api_key_is_sent_as_bearer_token(fake_openai: ModuleType) -> None:
    fake = fake_openai.FakeOpenAI()
    async with fake.serve() as url:
        await measure(url, num_jobs=1, api_key="secret")
        assert fake.headers[-1]["Authorization"] == "Bearer secret"
        await measure(url, num_jobs=1)
        assert "Authorization" not in fake.headers[-1]


async def test_arrival_times_are_kept_unparsed(fake_openai: ModuleType) -> None:
    async with fake_openai.FakeOpenAI().serve() as url:
        load = await measure(url, num_jobs=1)
    first: Exchange = load.exchanges[0]
    stamps = [stamp for stamp, _ in first.pieces]
    assert stamps == sorted(stamps)
    assert first.started < stamps[0] <= stamps[-1] <= first.ended
    assert b"".join(received for _, received in first.pieces).endswith(b"data: [DONE]\n\n")
