"""Who runs when, who waits for whom, who gives way, and what is refused."""

from __future__ import annotations

import gc

import pytest
from scheduler_fakes import (
    CLIENT,
    CONTEXT,
    PAGE_SIZE,
    VOCAB_SIZE,
    DigitsGrammar,
    FakeGrammarManager,
    Harness,
    reference,
)

from constrained.errors import GrammarServiceUnavailableError, InvalidGrammarError
from constrained.spec import GrammarSpec
from sampling.params import SamplingParams
from scheduler.messages import (
    AbortRequest,
    FlushCache,
    GenerateRequest,
    GetStats,
    Hello,
    SchedulerReady,
    SchedulerStats,
    StepOutput,
)
from scheduler.planning.waiting_queue import MAX_PASSED_OVER
from scheduler.requests.request import Request, RequestGroup
from server.metrics.scheduler import FURTHER_COUNTERS

BOTH = pytest.mark.parametrize("max_in_flight", [0, 1], ids=["plain", "overlapped"])
SPEC = GrammarSpec(kind="regex", value="[0-9]{5}")


def first_run_order(harness: Harness) -> list[str]:
    order: list[str] = []
    for plan in harness.executor.plans:
        for row in plan.rows:
            request_id = row.request.group.message.request_id
            if request_id not in order:
                order.append(request_id)
    return order


@BOTH
def test_decodes_go_before_prefill_chunks_under_one_budget(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, max_batch_tokens=8)
    harness.submit("short", [1, 2], max_tokens=20)
    harness.step(2)
    harness.submit("long", list(range(30)), max_tokens=2)
    harness.run()
    assert all(plan.num_tokens <= 8 for plan in harness.executor.plans)
    for plan in harness.executor.plans[3:6]:
        assert [len(row.token_ids) for row in plan.rows] == [1, 7]


@BOTH
def test_higher_priority_runs_first_and_equal_priority_by_arrival(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, max_running_requests=1, policy="fcfs")
    for request_id, priority in (("a", 0), ("b", 0), ("c", 5), ("d", -1), ("e", 5)):
        harness.submit(request_id, [len(request_id), priority + 2], priority=priority, max_tokens=2)
    harness.run()
    assert first_run_order(harness) == ["c", "e", "a", "b", "d"]


@BOTH
def test_the_longest_cached_prefix_runs_first(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, max_running_requests=1, policy="lpm")
    harness.submit("warm", list(range(20)), max_tokens=1)
    harness.run()
    harness.submit("none", [50] * 20, max_tokens=1)
    harness.submit("some", [*range(8), 60, 61], max_tokens=1)
    harness.submit("most", [*range(16), 60, 61], max_tokens=1)
    harness.run()
    assert first_run_order(harness) == ["warm", "most", "some", "none"]
    assert harness.finish("most").usage.cached_tokens == 16
    assert harness.finish("some").usage.cached_tokens == 8


@BOTH
def test_a_request_without_a_cached_prefix_is_not_passed_over_for_ever(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, max_running_requests=1, policy="lpm")
    harness.submit("warm", list(range(20)), max_tokens=1)
    harness.run()
    harness.submit("unlucky", [50] * 20, max_tokens=1)
    for index in range(3 * MAX_PASSED_OVER):
        harness.submit(f"hit{index}", [*range(16), index % 60], max_tokens=1)
        harness.step()
    harness.run()
    assert first_run_order(harness).index("unlucky") <= MAX_PASSED_OVER + 2


@BOTH
def test_a_full_hit_still_computes_the_last_token(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    prompt = list(range(4 * PAGE_SIZE))
    for request_id in ("a", "b"):
        params = harness.submit(request_id, prompt)
        harness.run()
        assert harness.tokens(request_id) == reference(prompt, params)
    assert harness.finish("b").usage.cached_tokens == 3 * PAGE_SIZE


@BOTH
def test_a_finished_answer_is_a_cached_prefix_of_the_next_turn(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    prompt = list(range(10))
    params = harness.submit("first", prompt, max_tokens=11)
    harness.run()
    harness.submit("second", prompt + reference(prompt, params) + [1, 2], max_tokens=3)
    harness.run()
    # The last drawn token was never computed: 20 of 21 tokens have KV.
    assert harness.finish("second").usage.cached_tokens == 20


@BOTH
def test_simultaneous_arrivals_compute_a_shared_prefix_once(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, max_batch_tokens=16)
    shared = list(range(40))
    for index in range(5):
        harness.submit(f"r{index}", [*shared, 50 + index], max_tokens=1)
    harness.run()
    assert harness.executor.computed_tokens == 41 + 4 * 1
    for index in range(5):
        assert harness.tokens(f"r{index}") == reference([*shared, 50 + index], harness.submit("x", [1], max_tokens=1))


@BOTH
def test_requests_that_share_nothing_do_not_wait_for_each_other(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, max_batch_tokens=64)
    for index in range(4):
        harness.submit(f"r{index}", [index] * 10, max_tokens=1)
    harness.run()
    assert len(harness.executor.plans[0].rows) == 4


@BOTH
def test_who_waited_for_a_prefix_goes_on_when_its_owner_is_aborted(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, max_batch_tokens=4)
    prompt = list(range(40))
    harness.submit("owner", prompt, max_tokens=5)
    params = harness.submit("waiter", prompt, max_tokens=5)
    harness.step(2)
    harness.abort("owner")
    harness.run()
    assert harness.tokens("waiter") == reference(prompt, params)
    harness.check_nothing_leaked()


@BOTH
def test_out_of_pages_the_youngest_gives_way_and_all_finish(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, num_pages=10, prefix_cache=False)
    expected = {}
    for index in range(4):
        params = harness.submit(f"r{index}", [index, index + 1, 7], max_tokens=30)
        expected[f"r{index}"] = reference([index, index + 1, 7], params)
    harness.run()
    assert harness.planner.counters.preemptions > 0
    for request_id, tokens in expected.items():
        assert harness.tokens(request_id) == tokens
    finished = [o.request_id for m in harness.connection.sent for o in getattr(m[1], "outputs", ()) if o.finish]
    assert finished[0] == "r0"
    harness.check_nothing_leaked()


@BOTH
@pytest.mark.parametrize(("prompt_length", "fits"), [(12, True), (16, False)])
def test_an_admission_leaves_a_page_to_each_running_request(max_in_flight: int, prompt_length: int, fits: bool) -> None:
    harness = Harness(max_in_flight, num_pages=8, prefix_cache=False)
    harness.submit("running", [1] * 14, max_tokens=9)
    harness.step()
    # 4 of 8 pages are left; taking all of them would soon push somebody out again.
    harness.submit("newcomer", [2] * prompt_length, max_tokens=5)
    harness.step()
    assert len(harness.planner.running) == (2 if fits else 1)
    harness.run()
    assert harness.finish("newcomer").reason == "length"
    if not fits:
        assert harness.planner.counters.preemptions == 0


@BOTH
def test_a_request_as_large_as_the_pool_runs_among_others(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, num_pages=8)
    total = 8 * PAGE_SIZE
    harness.submit("small0", [1, 2], max_tokens=10)
    params = harness.submit("large", [9] * 10, max_tokens=CONTEXT)
    harness.submit("small1", [3, 4], max_tokens=10)
    harness.run()
    assert harness.tokens("large") == reference([9] * 10, params, max_total=total)
    assert harness.finish("large").reason == "length"
    harness.check_nothing_leaked()


# refusals


def test_a_prompt_that_can_never_fit_is_refused() -> None:
    harness = Harness(0, num_pages=8)
    harness.submit("pool", [1] * 32)
    harness.submit("fits", [1] * 31)
    large = Harness(0, num_pages=128)
    large.submit("context", [1] * CONTEXT)
    for some in (harness, large):
        some.run()
    assert harness.rejection("pool").status == 400
    assert "32 tokens" in harness.rejection("pool").message
    assert large.rejection("context").code == "context_length_exceeded"
    assert len(harness.tokens("fits")) == 1


@pytest.mark.parametrize("prompt", [[], [VOCAB_SIZE], [-1], [2**63 - 1]])
def test_a_prompt_of_wrong_token_ids_is_refused(prompt: list[int]) -> None:
    harness = Harness(0)
    harness.submit("a", prompt)
    harness.step()
    assert harness.rejection("a").status == 400
    assert harness.rejection("a").param == "prompt"
    assert not harness.scheduler.has_work


def test_wrong_sampling_parameters_are_refused_by_name() -> None:
    harness = Harness(0)
    harness.submit("a", [1], temperature=float("nan"))
    harness.submit("b", [1], stop=(b"x" * 100_000,))
    harness.step()
    assert (harness.rejection("a").status, harness.rejection("a").param) == (400, "temperature")
    assert (harness.rejection("b").status, harness.rejection("b").param) == (400, "stop")


def test_a_full_queue_is_429() -> None:
    harness = Harness(0, max_running_requests=2, max_queued_requests=3)
    for index in range(7):
        harness.submit(f"r{index}", [index])
    harness.step()
    assert harness.admitted() == [f"r{index}" for index in range(5)]
    assert harness.rejection("r5").status == 429
    assert harness.rejection("r6").type == "rate_limit_error"
    harness.run()


def test_a_request_id_in_use_is_refused() -> None:
    harness = Harness(0)
    harness.submit("a", [1])
    harness.submit("a", [2])
    harness.submit("a", [3], client=b"other")
    harness.run()
    assert harness.rejection("a").status == 400
    assert harness.admitted() == ["a", "a"]


def test_a_grammar_without_a_manager_is_refused() -> None:
    harness = Harness(0)
    harness.submit("a", [1], grammar=SPEC)
    harness.step()
    assert harness.rejection("a").status == 400
    assert "not enabled" in harness.rejection("a").message


def test_a_grammar_that_fails_rejects_its_request_alone() -> None:
    manager = FakeGrammarManager()
    harness = Harness(0, grammar_manager=manager)
    harness.submit("bad", [1], grammar=SPEC, grammar_field="regex")
    harness.submit("free", [1])
    harness.step(3)
    manager.finish(error=InvalidGrammarError("unclosed bracket at 3"))
    harness.run()
    assert harness.rejection("bad").status == 400
    assert harness.rejection("bad").message == "unclosed bracket at 3"
    assert harness.rejection("bad").param == "regex"
    assert harness.rejection("bad").code == "invalid_" + SPEC.kind.replace("json_", "")
    assert harness.finish("free").reason == "length"
    harness.check_nothing_leaked()


def test_a_refused_schema_of_a_tool_is_a_schema_to_its_client() -> None:
    manager = FakeGrammarManager()
    harness = Harness(0, grammar_manager=manager)
    tag = GrammarSpec(kind="structural_tag", value="{}")
    harness.submit("bad", [1], grammar=tag, grammar_field="tools")
    harness.step(3)
    manager.finish(error=InvalidGrammarError("unknown type 'strnig'"))
    harness.run()
    assert harness.rejection("bad").code == "invalid_schema"


def test_a_compile_service_that_is_down_is_the_servers_fault() -> None:
    manager = FakeGrammarManager()
    harness = Harness(0, grammar_manager=manager)
    harness.submit("a", [1], grammar=SPEC)
    harness.step()
    manager.finish(error=GrammarServiceUnavailableError("grammar compile processes do not start"))
    harness.step()
    rejection = harness.rejection("a")
    assert (rejection.status, rejection.code, rejection.param) == (503, "grammar_unavailable", None)
    assert "do not start" in rejection.message


def test_a_grammar_that_is_nothing_fails_closed() -> None:
    manager = FakeGrammarManager()
    harness = Harness(0, grammar_manager=manager)
    harness.submit("a", [1], grammar=SPEC)
    harness.step()
    manager.finish(grammar=None, error=None)
    harness.step()
    assert harness.rejection("a").status == 500


# aborts and errors


def test_a_request_is_stopped_from_whichever_http_process_gets_the_call() -> None:
    harness = Harness(0)
    for name in ("a", "b:0", "b:1", "ab"):
        harness.submit(name, [1], max_tokens=200, client=b"one")
    harness.step(2)
    for name in ("a", "b"):
        harness.abort(name, client=b"another")
    harness.step(2)
    assert [request.group.message.request_id for request in harness.planner.running] == ["ab"]
    aborted = {
        (client, output.request_id)
        for client, message in harness.connection.sent
        if isinstance(message, StepOutput)
        for output in message.outputs
        if output.finish is not None and output.finish.reason == "abort"
    }
    assert aborted == {(b"one", "a"), (b"one", "b:0"), (b"one", "b:1")}


@BOTH
def test_an_abort_frees_place_and_pages_within_a_step_or_two(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    harness.submit("a", list(range(10)), n=2, max_tokens=100)
    harness.step(5)
    assert harness.planner.pool.num_referenced > 0
    harness.abort("a")
    harness.step(1 + max_in_flight)
    assert harness.planner.pool.num_referenced == 0
    assert not harness.scheduler.has_work
    assert [harness.finish("a", index).reason for index in range(2)] == ["abort", "abort"]
    harness.check_nothing_leaked()


def test_only_a_client_that_leaves_requests_behind_is_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(0)
    harness.submit("a", [1], max_tokens=50, client=b"busy")
    harness.step(2)
    harness.connection.vanished.append(b"idle")
    harness.step()
    assert caplog.records == []
    harness.connection.vanished.append(b"busy")
    harness.step()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "requests of it that end: 1" in caplog.text


def test_a_client_that_aborts_what_it_has_and_leaves_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(0)
    harness.submit("a", [1], max_tokens=50, client=b"stopped")
    harness.step(2)
    harness.abort("a", client=b"stopped")
    harness.connection.vanished.append(b"stopped")  # both are found after one long step
    harness.step()
    assert caplog.records == []
    harness.check_nothing_leaked()


@BOTH
def test_a_vanished_client_frees_its_requests_within_a_step_or_two(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    harness.submit("a", [1], client=b"gone", max_tokens=100)
    params = harness.submit("b", [1], max_tokens=20)
    harness.step(4)
    harness.connection.vanished.append(b"gone")
    harness.step(1 + max_in_flight)
    assert [request.group.client for request in harness.planner.running] == [CLIENT]
    sent_to_gone = sum(client == b"gone" for client, _ in harness.connection.sent)
    harness.run()
    assert sum(client == b"gone" for client, _ in harness.connection.sent) == sent_to_gone
    assert harness.tokens("b") == reference([1], params)
    harness.check_nothing_leaked()


@BOTH
def test_a_new_hello_ends_what_the_client_asked_before(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    harness.submit("a", [1], max_tokens=100)
    harness.step(3)
    harness.connection.incoming.append((CLIENT, Hello()))
    harness.step(1 + max_in_flight)
    assert len(harness.messages(SchedulerReady)) == 1
    assert not harness.scheduler.has_work
    harness.check_nothing_leaked()


@pytest.mark.parametrize(
    ("name", "left"),
    [("a", "b c:0 c:1 d"), ("c", "a b d"), ("mine", "a b d"), ("shared", "c:0 c:1 d"), (None, "")],
)
def test_requests_of_every_client_are_aborted_by_any_of_their_names(name: str | None, left: str) -> None:
    harness = Harness(0)
    for request_id, client_request_id in (
        ("a", "shared"), ("b", "shared"), ("c:0", "mine"), ("c:1", "mine"), ("d", "d's own"),
    ):  # fmt: skip
        message = GenerateRequest(
            request_id=request_id,
            client_request_id=client_request_id,
            prompt_token_ids=[1],
            sampling=SamplingParams(max_tokens=100, ignore_eos=True),
        )
        harness.connection.incoming.append((request_id.encode(), message))
    harness.step(2)
    harness.connection.incoming.append((b"another", AbortRequest(request_id=name)))
    harness.step(2)
    assert sorted(request.group.message.request_id for request in harness.planner.running) == left.split()


def test_aborting_the_unknown_is_silent() -> None:
    harness = Harness(0)
    harness.connection.incoming.append((CLIENT, AbortRequest(request_id="never")))
    harness.step()
    assert harness.connection.sent == []


def test_an_abort_while_the_grammar_compiles_leaves_the_grammar_queue() -> None:
    manager = FakeGrammarManager()
    harness = Harness(0, grammar_manager=manager)
    harness.submit("a", [1], grammar=SPEC)
    harness.step()
    harness.abort("a")
    harness.step()
    assert len(manager.aborted) == 1
    assert harness.rejection("a").code == "aborted"
    manager.finish(DigitsGrammar())
    harness.step()
    assert not harness.scheduler.has_work


@BOTH
def test_an_error_in_a_row_ends_that_request_alone(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    harness.submit("bad", [1], n=2, max_tokens=50)
    params = harness.submit("good", [1], max_tokens=20)
    harness.step(3)
    harness.executor.fail_next.add("bad")
    harness.run()
    assert harness.failure("bad").status == 500
    assert harness.tokens("good") == reference([1], params)
    harness.check_nothing_leaked()


@BOTH
def test_a_token_the_grammar_refuses_is_an_error_not_an_answer(max_in_flight: int) -> None:
    class Liar(DigitsGrammar):
        def choose(self, token_id: int) -> int:
            return self.limit

        def copy(self) -> Liar:
            return Liar(self.limit, self.length)

        def fork(self) -> Liar:
            return self.copy()

    manager = FakeGrammarManager()
    harness = Harness(max_in_flight, grammar_manager=manager)
    harness.submit("a", [1], grammar=SPEC)
    harness.step()
    manager.finish(Liar())
    harness.run()
    assert harness.failure("a").status == 500
    assert harness.tokens("a") == []
    harness.check_nothing_leaked()


# the rest of the protocol


def test_flushing_drops_what_nobody_uses() -> None:
    harness = Harness(0)
    harness.submit("done", list(range(20)), max_tokens=1)
    harness.run()
    harness.submit("live", [50] * 8, max_tokens=50)
    harness.step(2)
    harness.connection.incoming.append((CLIENT, FlushCache(call_id=7)))
    harness.step()
    flushed = harness.connection.sent[-2][1]
    assert (flushed.call_id, flushed.freed_tokens) == (7, 20)
    harness.run()
    harness.submit("again", list(range(20)), max_tokens=1)
    harness.run()
    assert harness.finish("again").usage.cached_tokens == 0


def test_flushing_forgets_compiled_grammars() -> None:
    manager = FakeGrammarManager()
    harness = Harness(0, grammar_manager=manager)
    harness.connection.incoming.append((CLIENT, FlushCache(call_id=7)))
    harness.step()
    assert manager.num_flushes == 1


def test_steps_are_noted_while_a_grammar_is_waited_for() -> None:
    manager = FakeGrammarManager()
    harness = Harness(0, grammar_manager=manager)
    harness.submit("decodes", [1, 2], max_tokens=9)
    harness.step(2)
    assert manager.steps_while_waiting == 0
    harness.submit("waits", [1, 2], max_tokens=9, grammar=GrammarSpec(kind="regex", value="any"))
    harness.step(3)
    assert manager.steps_while_waiting == 3


def test_stats_count_what_happened() -> None:
    harness = Harness(0)
    for request_id in ("a", "b"):
        harness.submit(request_id, list(range(20)), max_tokens=4)
        harness.run()
    harness.connection.incoming.append((CLIENT, GetStats(call_id=3)))
    harness.step()
    (stats,) = harness.messages(SchedulerStats)
    assert stats.call_id == 3
    assert (stats.prompt_tokens_total, stats.cached_tokens_total, stats.generated_tokens_total) == (40, 16, 8)
    assert (stats.running_requests, stats.kv_tokens_used, stats.kv_tokens_capacity) == (0, 0, 256)
    assert stats.kv_tokens_cached == 20


def test_every_counter_has_a_meaning_on_the_metrics_page() -> None:
    assert set(FURTHER_COUNTERS) == set(Harness(0, grammar_manager=FakeGrammarManager()).scheduler.stats(1).counters)


def test_unseeded_requests_get_different_seeds_and_seeded_ones_their_own() -> None:
    harness = Harness(0)
    for index in range(3):
        harness.submit(f"r{index}", [1], seed=None)
    harness.submit("own", [1], seed=5)
    harness.step()
    seeds = [request.group.seed for request in harness.planner.running]
    assert len(set(seeds)) == 4
    assert seeds[3] == 5


@BOTH
def test_two_schedulers_with_the_same_inputs_plan_the_same_steps(max_in_flight: int) -> None:
    plans = []
    for _ in range(2):
        harness = Harness(max_in_flight, num_pages=12, max_batch_tokens=9)
        for index in range(8):
            harness.submit(f"r{index}", [index % 3] * 6 + [index], n=2, max_tokens=12)
            harness.step()
        harness.run()
        plans.append(
            [
                [(row.request.key, list(row.token_ids), row.start, row.pending_row) for row in plan.rows]
                for plan in harness.executor.plans
            ]
        )
    assert plans[0] == plans[1]


def test_what_a_request_held_goes_with_it_and_not_when_a_collector_looks() -> None:
    manager = FakeGrammarManager()
    harness = Harness(0, grammar_manager=manager)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        harness.submit("done", [1], grammar=SPEC, n=2)
        manager.finish(DigitsGrammar())
        harness.run()
        harness.submit("left", [1], max_tokens=50)
        harness.step(3)
        harness.abort("left")
        harness.run()
        harness.executor.plans.clear()
        gc.collect()
        assert [one for one in gc.garbage if isinstance(one, (Request, RequestGroup))] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
