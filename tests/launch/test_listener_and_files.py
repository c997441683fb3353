"""The port, the private folder, the restart policy, the status pipe and the ready text."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shlex
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.launch.errors import StartError
from server.launch.listener import bind_listener, is_loopback, listen
from server.launch.processes.restarts import RestartPolicy
from server.launch.processes.status import Failed, Loading, Ready, StatusPipe, decode_status
from server.launch.ready import ready_text
from server.launch.runtime_dir import runtime_dir
from server.models.assets import ModelAssets
from server.settings import ServeSettings

ASSETS = ModelAssets(
    name="tiny", weights_path=Path("w"), tokenizer_json=Path("t"), chat_template="{{ messages }}", bos_token=None,
    eos_token=None, eos_token_ids=(), add_bos=False, context_length=8,
)  # fmt: skip


def test_a_port_in_use_is_named_with_the_cure(free_port: Callable[[], int]) -> None:
    port = free_port()
    with bind_listener("127.0.0.1", port) as first:
        listen(first)
        with pytest.raises(StartError, match=rf"port {port} of 127\.0\.0\.1 is in use.*--port"):
            bind_listener("127.0.0.1", port)


def test_two_starts_that_both_bound_do_not_both_listen(free_port: Callable[[], int]) -> None:
    port = free_port()
    with bind_listener("127.0.0.1", port) as first, bind_listener("127.0.0.1", port) as second:
        listen(first)
        with pytest.raises(StartError, match="is in use"):
            listen(second)


@pytest.mark.parametrize(("host", "only_here"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_an_address_is_known_to_be_reachable_from_elsewhere(host: str, only_here: bool) -> None:
    with bind_listener(host, 0) as listener:
        assert is_loopback(listener) is only_here


@pytest.mark.parametrize(("flags", "times"), [([], 1), (["--api-key", "k"], 0)])
def test_a_server_that_is_open_to_everyone_says_so_once(flags: list[str], times: int, tmp_path: Path) -> None:
    scansion = Path(sysconfig.get_path("scripts")) / "scansion"
    started = subprocess.run(
        [scansion, "serve", "--host", "0.0.0.0", "--port", "0", "--model", str(tmp_path), *flags],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert started.returncode == 1  # there is no model in the folder
    warning = "--host 0.0.0.0 without --api-key: everyone who can reach the port can use this server"
    assert started.stderr.count(warning) == times


def test_clients_are_refused_until_it_listens(free_port: Callable[[], int]) -> None:
    port = free_port()
    with bind_listener("127.0.0.1", port) as listener, socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0
        listen(listener)
    with bind_listener("127.0.0.1", port):  # at once, although its connections may linger
        pass


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_host_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(StartError, match="is no address of this machine"):
        bind_listener(host, 0)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """An empty folder; pytest's own ones may be too deep for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_the_runtime_folder_is_private_and_goes(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    with runtime_dir() as folder:
        assert folder.parent == short_path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "scheduler1023").touch()
    assert list(short_path.iterdir()) == []


def test_what_a_killed_server_left_is_swept_and_a_running_one_is_not(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    code = """
        import os
        from server.launch.runtime_dir import runtime_dir
        with runtime_dir():
            os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    (left,) = short_path.iterdir()
    with runtime_dir() as first:
        assert not left.exists()
        with runtime_dir() as second:
            assert first.exists()
            assert second.exists()


def test_a_runtime_folder_whose_sockets_have_too_long_paths_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with runtime_dir() as folder:
        assert deep not in folder.parents
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "scheduler1023"))


def test_restarts_slow_down_and_end_and_old_crashes_are_forgotten() -> None:
    policy = RestartPolicy(max_crashes=5, window_seconds=300)
    assert [policy.next_pause(float(now)) for now in range(5)] == [0.0, 0.5, 1.0, 2.0, None]
    patient = RestartPolicy(max_crashes=5, window_seconds=300)
    assert [patient.next_pause(301.0 * n) for n in range(20)] == [0.0] * 20


def test_status_travels_without_pickle() -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pipe = StatusPipe.take_over(sender)
    assert sender.closed
    for message in (("progress", "loading", 0.5), ("ready", "all well"), ("ready",), ("failed", "no")):
        pipe.send(message)
    received = [decode_status(receiver.recv_bytes()) for _ in range(4)]
    assert received == [Loading("loading", 0.5), Ready("all well"), Ready(""), Failed("no")]
    with pytest.raises(ValueError, match="not a status message"):
        decode_status(b"\xa2hi")
    pipe.close()
    with pytest.raises(EOFError):
        receiver.recv_bytes()
    receiver.close()


@pytest.mark.parametrize(
    ("settings", "route"),
    [
        (ServeSettings(), "http://127.0.0.1:30000/v1/chat/completions"),
        (ServeSettings(host="0.0.0.0"), "http://127.0.0.1:30000/v1/chat/completions"),
        (ServeSettings(host="::1", root_path="/llm/"), "http://[::1]:30000/llm/v1/chat/completions"),
    ],
)
def test_the_command_to_paste_is_one_a_shell_understands(settings: ServeSettings, route: str) -> None:
    words = pasted(ready_text(settings, ASSETS, 30000))
    assert words[:2] == ["curl", route]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "tiny"
    assert body["response_format"]["type"] == "json_schema"


def test_the_command_to_paste_fits_the_server() -> None:
    with_key = ready_text(ServeSettings(api_key=("secret",)), ASSETS, 1)
    assert "secret" not in with_key
    assert "Bearer YOUR-KEY" in with_key
    plain = pasted(ready_text(ServeSettings(grammar_backend="none"), ASSETS, 1))
    assert "response_format" not in json.loads(plain[-1])
    named = pasted(ready_text(ServeSettings(served_model_name="it's"), ASSETS, 1))
    assert json.loads(named[-1])["model"] == "it's"
    without_template = pasted(ready_text(ServeSettings(), dataclasses.replace(ASSETS, chat_template=None), 1))
    assert without_template[1].endswith("/v1/completions")
    assert json.loads(without_template[-1])["prompt"]


def pasted(text: str) -> list[str]:
    return shlex.split(text[text.index("curl") :].replace("\\\n", " "))


def test_neither_supervisor_nor_http_process_imports_torch() -> None:
    code = """
        import sys
        import server.cli.command, server.launch.processes.entries, server.worker, server.app
        heavy = {"torch", "transformers", "xgrammar", "llguidance", "outlines_core"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=os.sep)
