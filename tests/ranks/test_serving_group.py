"""Two scheduler processes that serve as one, over gloo; and what one does when the other is killed."""

from __future__ import annotations

import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from byte_model import write_byte_model
from serving_group import ServingGroup, generate

from constrained.spec import GrammarSpec
from constrained.vocabulary import Vocabulary
from scheduler.messages import (
    AbortRequest,
    Admitted,
    CacheFlushed,
    ChoiceOutput,
    Failed,
    FlushCache,
    GetStats,
    Hello,
    PromptLogprobs,
    Rejected,
    SchedulerReady,
    SchedulerStats,
    StepOutput,
    encode,
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def group(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingGroup]:
    group = ServingGroup(model_folder, tmp_path_factory.mktemp("group"), draft=True, speculative="draft-model")
    group.wait_until_ready()
    yield group
    group.close()


class Answers:
    """What comes of some requests until all of them are over."""

    def __init__(self, group: ServingGroup, request_ids: set[str], choices: int = 1) -> None:
        self.outputs: dict[tuple[str, int], list[ChoiceOutput]] = defaultdict(list)
        self.prompt_logprobs: dict[str, PromptLogprobs] = {}
        self.rejected: dict[str, Rejected] = {}
        open_choices = dict.fromkeys(request_ids, choices)
        while open_choices:
            message = group.receive()
            assert not isinstance(message, Failed), message
            if isinstance(message, Rejected):
                self.rejected[message.request_id] = message
                del open_choices[message.request_id]
            elif isinstance(message, PromptLogprobs):
                self.prompt_logprobs[message.request_id] = message
            elif isinstance(message, StepOutput):
                for output in message.outputs:
                    self.outputs[output.request_id, output.choice_index].append(output)
                    if output.finish is not None:
                        open_choices[output.request_id] -= 1
                        if not open_choices[output.request_id]:
                            del open_choices[output.request_id]
            else:
                assert isinstance(message, Admitted)

    def tokens(self, request_id: str, choice_index: int = 0) -> list[int]:
        return [token for output in self.outputs[request_id, choice_index] for token in output.token_ids]


def test_rank_0_alone_answers_the_http_process(group: ServingGroup) -> None:
    group.send(Hello())
    ready = group.receive()
    assert isinstance(ready, SchedulerReady)
    assert ready.kv_cache_tokens == 1024
    group.send(GetStats(call_id=1))
    stats = group.receive()
    assert isinstance(stats, SchedulerStats)
    group.send(FlushCache(call_id=2))
    assert isinstance(group.receive(), CacheFlushed)
    assert group.silence(0.3)


def test_requests_of_every_kind_are_served_together(group: ServingGroup, model_folder: Path) -> None:
    token_bytes = Vocabulary.from_tokenizer_json(model_folder / "tokenizer.json").visible_bytes
    form = GrammarSpec(kind="regex", value="(yes|no) [0-9]{3}")
    for number in range(4):
        group.send(generate(f"free{number}", max_tokens=30, temperature=float(number % 2), n=2))
        group.send(generate(f"form{number}", grammar=form, max_tokens=30, temperature=1.0, n=2))
        group.send(generate(f"scored{number}", logprobs=2, prompt_logprobs=1, n=2))
    names = {f"{kind}{number}" for kind in ("free", "form", "scored") for number in range(4)}
    answers = Answers(group, names, choices=2)
    assert not answers.rejected
    for number in range(4):
        for choice in range(2):
            assert len(answers.tokens(f"free{number}", choice)) == 30
            text = b"".join(token_bytes[token] for token in answers.tokens(f"form{number}", choice)).decode()
            assert re.fullmatch("(yes|no) [0-9]{3}", text)
            scored = answers.outputs[f"scored{number}", choice]
            assert sum(len(output.logprobs or ()) for output in scored) == 8
        assert len(answers.prompt_logprobs[f"scored{number}"].logprobs) == 3
    assert answers.tokens("free0", 0) == answers.tokens("free2", 0), "greedy answers to one prompt differ"


def test_the_draft_model_of_rank_0_drafts_for_all(group: ServingGroup) -> None:
    group.send(generate("drafted", max_tokens=40))
    Answers(group, {"drafted"})
    group.send(GetStats(call_id=3))
    stats = group.receive()
    assert isinstance(stats, SchedulerStats)
    assert stats.drafters["draft-model"].accepted_tokens > 10


def test_a_grammar_that_both_ranks_refuse_is_the_clients_fault(group: ServingGroup) -> None:
    group.send(generate("bad", grammar=GrammarSpec(kind="regex", value="(unclosed")))
    assert Answers(group, {"bad"}).rejected["bad"].error.status == 400


def test_an_abort_between_two_steps_ends_a_request_on_every_rank(group: ServingGroup) -> None:
    group.send(generate("long", max_tokens=900))
    group.send(generate("other", max_tokens=60, prompt=b"xyz"))
    assert isinstance(group.receive(), Admitted)
    group.send(AbortRequest(request_id="long"))
    answers = Answers(group, {"long", "other"})
    last = answers.outputs["long", 0][-1].finish
    assert last is not None
    assert last.reason == "abort"
    assert len(answers.tokens("other")) == 60


def test_requests_of_a_client_that_is_gone_end_on_every_rank_and_rank_0_says_so(group: ServingGroup) -> None:
    context = zmq.Context()
    other = context.socket(zmq.DEALER)
    other.connect(group.endpoint)
    other.send(encode(generate("orphan", max_tokens=1800)))
    assert other.poll(30_000)
    context.destroy(linger=0)
    group.send(generate("stays", max_tokens=60))
    assert len(Answers(group, {"stays"}).tokens("stays")) == 60
    group.send(GetStats(call_id=4))
    stats = group.receive()
    assert isinstance(stats, SchedulerStats)
    assert stats.running_requests == 0
    (line,) = group.members[0].log_lines()
    assert "requests of it that end: 1" in line
    assert group.members[1].log_lines() == []


def test_at_sigterm_to_all_every_rank_leaves_when_the_last_request_is_over(group: ServingGroup) -> None:
    group.send(generate("last", max_tokens=500))
    assert isinstance(group.receive(), Admitted)
    assert isinstance(group.receive(), StepOutput)
    group.terminate()
    time.sleep(0.05)
    group.send(generate("late"))
    answers = Answers(group, {"last", "late"})
    assert answers.rejected["late"].error.status == 503
    last = answers.outputs["last", 0][-1].finish
    assert last is not None
    assert last.usage.completion_tokens == 500
    assert [member.exit_code(20) for member in group.members] == [0, 0]
    assert "leaves" not in "".join(line for member in group.members for line in member.log_lines())


@pytest.mark.parametrize(
    ("victim", "is_busy"), [(0, True), (1, True), (1, False)], ids=["rank 0", "rank 1", "rank 1 of an idle group"]
)
def test_a_rank_whose_partner_is_killed_says_so_and_leaves(
    victim: int, is_busy: bool, model_folder: Path, tmp_path: Path
) -> None:
    has_grammars = is_busy and victim == 1
    group = ServingGroup(model_folder, tmp_path, grammars=has_grammars)
    try:
        group.wait_until_ready()
        if is_busy:
            for number in range(3):
                form = GrammarSpec(kind="regex", value=f"[a-z]{{900}}{number}") if has_grammars else None
                group.send(generate(f"r{number}", max_tokens=900, n=2))
                group.send(generate(f"form{number}", max_tokens=900, grammar=form))
            assert isinstance(group.receive(), Admitted)
            time.sleep(random.SystemRandom().uniform(0.0, 0.3))
        group.kill(victim)
        survivor = group.members[1 - victim]
        assert survivor.exit_code(5.0) == 1
        (line,) = survivor.log_lines()
        assert f"rank {1 - victim} leaves its group" in line
    finally:
        group.close()


def test_at_a_second_sigterm_every_rank_leaves_at_once(model_folder: Path, tmp_path: Path) -> None:
    group = ServingGroup(model_folder, tmp_path, grammars=False)
    try:
        group.wait_until_ready()
        group.send(generate("endless", max_tokens=1000, n=4))
        assert isinstance(group.receive(), Admitted)
        group.terminate()
        time.sleep(0.1)
        group.terminate()
        assert [member.exit_code(5.0) for member in group.members] == [0, 0]
    finally:
        group.close()


def test_ranks_with_other_settings_are_refused_before_anything_loads(model_folder: Path, tmp_path: Path) -> None:
    group = ServingGroup(model_folder, tmp_path, grammars=False, overrides={1: {"max_batch_tokens": 256}})
    try:
        for member in group.members:
            kind, message = member.last_word()
            assert kind == "failed"
            assert "max_batch_tokens" in str(message)
            assert member.exit_code(20) == 1
    finally:
        group.close()
