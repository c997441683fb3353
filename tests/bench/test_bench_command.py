from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from bench.serve.__main__ import main
from bench.serve.arguments import base_url, parser
from bench.serve.benchmark import ModelListError, Plan, first_model, run_benchmark
from bench.serve.client import Sending, Target
from bench.serve.metrics import Objectives
from bench.serve.own_server import ServerStartError, own_server

HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def plan(repeats: int, workloads: tuple[str, ...] = ("chat",)) -> Plan:
    return Plan(
        workloads=workloads,
        repeats=repeats,
        seed=3,
        sending=Sending(timeout_seconds=5),
        objectives=Objectives(ttft_ms=1000, itl_ms=1000),
        num_clients=2,
        num_jobs=2,
    )


@pytest.fixture
def fake_url(fake_openai: ModuleType) -> Iterator[str]:
    """A fake server in a thread, for commands that run a loop of their own."""
    loop = asyncio.new_event_loop()
    fake = fake_openai.FakeOpenAI(lambda body, index: "refuse" if body["model"] == "broken" else "answer")
    serving = fake.serve()
    url = loop.run_until_complete(serving.__aenter__())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(serving.__aexit__(None, None, None))
        loop.close()


async def test_two_servers_take_turns_in_going_first(fake_openai: ModuleType) -> None:
    lines: list[str] = []
    async with fake_openai.FakeOpenAI().serve() as one, fake_openai.FakeOpenAI().serve() as other:
        targets = [Target(label="a", base_url=one, model="m"), Target(label="b", base_url=other, model="m")]
        results = await run_benchmark(targets, plan(3), lines.append)
    assert [run.label for run in results.runs] == ["a", "b", "b", "a", "a", "b"]
    assert len(lines) == 6


async def test_repeats_ask_new_prompts_and_two_servers_get_the_same(fake_openai: ModuleType) -> None:
    one, other = fake_openai.FakeOpenAI(), fake_openai.FakeOpenAI()
    async with one.serve() as one_url, other.serve() as other_url:
        targets = [Target(label="a", base_url=one_url, model="m"), Target(label="b", base_url=other_url, model="m")]
        await run_benchmark(targets, plan(2))

    def prompts(fake: object) -> list[str]:
        return [body["messages"][0]["content"] for body in fake.bodies]  # type: ignore[attr-defined]

    assert sorted(prompts(one)) == sorted(prompts(other))
    assert len(set(prompts(one))) == len(prompts(one))


async def test_single_stays_one_client_whatever_the_others_have(fake_openai: ModuleType) -> None:
    fake = fake_openai.FakeOpenAI()
    fake.gap_seconds = 0.02
    async with fake.serve() as url:
        await run_benchmark([Target(label="a", base_url=url, model="m")], plan(1, ("single",)))
        assert fake.most_running == 1
        results = await run_benchmark([Target(label="a", base_url=url, model="m")], plan(1, ("chat",)))
        assert fake.most_running == 2
    assert results.runs[0].arrivals == "2 clients"


def test_command_writes_json_and_markdown(fake_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--base-url", fake_url.removesuffix("/v1"), "--seed", "5", "--workloads", "chat,structured"]
    arguments += ["--requests", "3", "--repeats", "2", "--against-url", fake_url]
    arguments += ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    assert main(arguments) == 0
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["seed"] == 5
    assert written["models"] == {"scansion": "fake-model", "other": "fake-model"}
    assert len(written["runs"]) == 8
    assert written["runs"][0]["figures"]["requests"] == 3
    assert written["runs"][0]["counted_by"] == {"usage": 3}
    structured = [run for run in written["runs"] if run["workload"] == "structured"]
    assert {run["figures"]["valid_share_of_finished"] for run in structured} == {0.0}
    markdown = (tmp_path / "r.md").read_text()
    assert "| structured | 16 clients | other | 6 | 0 |" in markdown
    assert "scansion / other:" in markdown
    assert "Median (least–greatest) of 2 repeats, seed 5" in markdown
    assert "output tok/s" in capsys.readouterr().out


def test_failed_requests_are_named_and_make_the_command_fail(fake_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--base-url", fake_url, "--model", "broken", "--workloads", "single", "--requests", "2"]
    assert main(arguments) == 1
    assert "2 × http_status: HTTP 429" in capsys.readouterr().out


def test_server_that_lists_no_model_is_an_error_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", "http://127.0.0.1:9"]) == 1
    assert "is it running?" in " ".join(capsys.readouterr().err.split())


async def test_first_model_of_the_list_is_used(fake_openai: ModuleType) -> None:
    async with fake_openai.FakeOpenAI().serve() as url:
        assert await first_model(url, None) == "fake-model"
        with pytest.raises(ModelListError):
            await first_model(url + "/nowhere", None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--base-url", "ftp://x"],
        ["--base-url", "127.0.0.1:3"],
        ["--workloads", "nothing"],
        ["--workloads", ","],
        ["--rate", "0"],
        ["--rate", "nan"],
        ["--rate", "2", "--clients", "2"],
        ["--requests", "0"],
        ["--extra-body", "[]"],
        ["--extra-body", "{"],
        ["--label", "other", "--against-url", "http://127.0.0.1:9"],
        ["--serve-args", "--x", "--base-url", "http://127.0.0.1:9"],
    ],
)
def test_wrong_options_are_refused_before_anything_starts(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_help_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args(["--help"])
    assert stopped.value.code == 0
    assert "--against-url" in capsys.readouterr().out


def test_base_url_may_come_with_or_without_its_version() -> None:
    assert base_url("http://127.0.0.1:3/") == base_url("http://127.0.0.1:3/v1/") == "http://127.0.0.1:3/v1"
    with pytest.raises(argparse.ArgumentTypeError):
        base_url("http://127.0.0.1:3/v1?x=1")


def test_own_server_is_started_on_a_free_port_and_stopped() -> None:
    with own_server([], start_seconds=30, command=[sys.executable, "-c", HEALTHY]) as server:
        assert server.base_url.startswith("http://127.0.0.1:")
        assert server.resident_mib() > 1
        assert server.process.poll() is None
    assert server.process.poll() is not None


def test_own_server_is_stopped_when_the_benchmark_fails() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        own_server([], start_seconds=30, command=[sys.executable, "-c", HEALTHY]) as server,
    ):
        raise ZeroDivisionError
    assert server.process.poll() is not None


def test_server_that_exits_is_an_error_with_its_last_words() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(ServerStartError, match="no such model"), own_server([], start_seconds=30, command=command):
        pass


def test_server_that_never_gets_ready_is_stopped_at_its_deadline() -> None:
    command = [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(60)"]
    with pytest.raises(ServerStartError, match="not ready in time"), own_server([], start_seconds=0.5, command=command):
        pass


def test_a_terminated_benchmark_stops_its_server(tmp_path: Path) -> None:
    program = """
import sys, time
from bench.serve.own_server import own_server
with own_server([], start_seconds=30, command=[sys.executable, "-c", sys.argv[1]]) as server:
    print(server.process.pid, flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", program, HEALTHY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        server = psutil.Process(int(benchmark.stdout.readline()))
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(30) == 128 + signal.SIGTERM
    assert not server.is_running()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [(["--help"], 0, "Put load on"), (["--base-url", "http://127.0.0.1:1"], 1, "pip install '.[bench]'")],
)
def test_an_installation_without_the_http_client_has_help_and_says_what_is_missing(
    arguments: list[str], code: int, text: str
) -> None:
    program = (
        "import sys; sys.modules['aiohttp'] = None; from server.cli.command import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "bench", "serve", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
