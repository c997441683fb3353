"""The HTTP process as a process: how it starts, drains and ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from localhost_certificate import TEST_CERTIFICATE, TEST_KEY

from bench.fake_scheduler import Behaviour, FakeScheduler
from constrained.vocabulary import Vocabulary
from server.config import HttpConfig
from server.worker import run_http_worker

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


class Worker:
    def __init__(self, process, status, url):
        self.process, self.status, self.url = process, status, url

    def get(self, path):
        return httpx.get(self.url + path, timeout=10, trust_env=False)

    def stream(self, body, texts):
        """Read a stream in a thread; what came is appended to ``texts`` at its end."""

        def read():
            answer = httpx.post(self.url + CHAT, json=body, timeout=20, trust_env=False)
            texts.append(answer.text)

        thread = threading.Thread(target=read)
        thread.start()
        return thread


@pytest.fixture
def start_worker(tmp_path, assets, wait_until):
    processes, fakes, listeners = [], [], []

    def start(count=1, scheme="http", **settings):
        endpoint = f"ipc://{tmp_path}/s"
        fake = FakeScheduler(endpoint, Vocabulary.from_tokenizer_json(assets.tokenizer_json), Behaviour())
        fake.behaviour.step_seconds = 0.02
        fake.behaviour.tokens_of = lambda request, choice: [70] * 4000
        fake.start()
        fakes.append(fake)
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        spawn = multiprocessing.get_context("spawn")
        workers = []
        for _ in range(count):
            status, child = spawn.Pipe()
            config = HttpConfig(endpoints=(endpoint,), log_level="error", **settings)
            process = spawn.Process(target=run_http_worker, args=(config, assets, listener, child))
            process.start()
            processes.append(process)
            workers.append(Worker(process, status, url))
        for worker in workers:
            assert worker.status.poll(60)
            assert worker.status.recv()[0] == "ready"
        wait_until(lambda: workers[0].get("/health").status_code == 200, seconds=20)
        return (workers[0] if count == 1 else workers), fake

    yield start
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join(10)
    for fake in fakes:
        fake.close()
    for listener in listeners:
        listener.close()


def test_sigterm_drains_running_requests_end_and_new_ones_are_refused(start_worker, wait_until):
    worker, fake = start_worker()
    texts = []
    reader = worker.stream({**BODY, "max_tokens": 60}, texts)
    wait_until(lambda: fake.num_running == 1)
    os.kill(worker.process.pid, signal.SIGINT)  # a terminal sends it to the whole group: not for this process
    os.kill(worker.process.pid, signal.SIGTERM)
    wait_until(lambda: worker.get("/health").json() == {"status": "draining"})
    assert worker.get("/health").status_code == 503
    refused = httpx.post(worker.url + CHAT, json=BODY, trust_env=False)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "draining"
    reader.join(15)
    assert texts[0].endswith("data: [DONE]\n\n")
    assert texts[0].count('"content":"') == 61
    worker.process.join(10)
    assert worker.process.exitcode == 0


def test_after_the_drain_timeout_requests_end_with_an_error_event(start_worker, wait_until):
    worker, fake = start_worker(drain_timeout=0.3)
    texts = []
    reader = worker.stream(BODY, texts)
    wait_until(lambda: fake.num_running == 1)
    os.kill(worker.process.pid, signal.SIGTERM)
    reader.join(10)
    last = texts[0].split("\n\n")[-2]
    assert last.startswith("event: error\n")
    assert json.loads(last.split("data: ")[1])["error"]["code"] == "draining"
    worker.process.join(10)
    assert worker.process.exitcode == 0


def test_a_process_says_that_it_is_alive_until_it_hangs(start_worker):
    worker, _ = start_worker()
    for _ in range(3):
        assert worker.status.poll(10)
        assert worker.status.recv() == ("alive",)
    os.kill(worker.process.pid, signal.SIGSTOP)
    try:
        time.sleep(0.2)
        while worker.status.poll():
            worker.status.recv()
        assert not worker.status.poll(1.5)
    finally:
        os.kill(worker.process.pid, signal.SIGCONT)


def test_a_second_sigterm_stops_at_once(start_worker, wait_until):
    worker, fake = start_worker()
    connection = socket.create_connection(("127.0.0.1", int(worker.url.rsplit(":", 1)[1])), timeout=5)
    raw = json.dumps(BODY).encode()
    connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(raw)) + raw)
    wait_until(lambda: fake.num_running == 1)
    os.kill(worker.process.pid, signal.SIGTERM)
    wait_until(lambda: worker.get("/health").status_code == 503)
    os.kill(worker.process.pid, signal.SIGTERM)
    started = time.monotonic()
    worker.process.join(5)
    assert time.monotonic() - started < 2.0
    assert worker.process.exitcode == 1
    connection.close()


def test_a_client_that_stops_in_the_middle_of_its_body_holds_up_no_shutdown(start_worker, capfd):
    worker, _ = start_worker(drain_timeout=30)
    with socket.create_connection(("127.0.0.1", int(worker.url.rsplit(":", 1)[1])), timeout=5) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" % CHAT.encode())
        time.sleep(0.2)
        started = time.monotonic()
        os.kill(worker.process.pid, signal.SIGTERM)
        worker.process.join(20)
        assert time.monotonic() - started < 10.0
    assert worker.process.exitcode == 0
    assert capfd.readouterr().err == ""


def test_an_answer_that_nobody_reads_holds_up_no_shutdown(start_worker, wait_until, capfd):
    worker, fake = start_worker(drain_timeout=0.3)
    fake.behaviour.step_seconds = 0.0
    fake.behaviour.tokens_of = lambda request, choice: [70] * 1_000_000
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", int(worker.url.rsplit(":", 1)[1])))
        raw = json.dumps({"prompt": "hi", "stream": True, "ignore_eos": True, "max_tokens": 3000, "n": 16}).encode()
        connection.sendall(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (b"/v1/completions", len(raw)) + raw
        )
        wait_until(lambda: fake.num_running == 16)
        wait_until(lambda: fake.num_running == 0, seconds=20)
        started = time.monotonic()
        os.kill(worker.process.pid, signal.SIGTERM)
        worker.process.join(20)
        assert time.monotonic() - started < 10.0
    assert worker.process.exitcode == 0
    assert "Traceback" not in capfd.readouterr().err


def test_several_processes_share_a_listener_and_their_counters(start_worker, tmp_path):
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    workers, fake = start_worker(count=2, metrics_directory=metrics)
    fake.behaviour.step_seconds = 0.0
    url = workers[0].url
    for _ in range(12):  # a new connection each: the kernel spreads them
        assert httpx.post(url + CHAT, json={**BODY, "max_tokens": 2}, trust_env=False).status_code == 200
    text = workers[0].get("/metrics").text
    assert 'scansion_requests_total{endpoint="/v1/chat/completions",method="POST",status="200"} 12.0' in text
    assert "scansion_scheduler_up 1.0" in text
    files = list(metrics.iterdir())
    assert len(files) == 4
    for file in files:  # no page that is touched later is without a block on the disk
        assert file.stat().st_size == 1 << 20
        assert 512 * file.stat().st_blocks >= 1 << 20


def test_a_folder_without_room_for_the_counters_is_reported(tmp_path, assets):
    spawn = multiprocessing.get_context("spawn")
    status, child = spawn.Pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        metrics = tmp_path / "metrics"
        metrics.mkdir()
        config = HttpConfig(endpoints=(f"ipc://{tmp_path}/s",), log_level="error", metrics_directory=metrics)
        process = spawn.Process(target=_run_with_small_files, args=(config, assets, listener, child))
        process.start()
        assert status.poll(30)
        kind, message = status.recv()
        process.join(10)
    assert kind == "failed"
    assert "no room" in message
    assert str(metrics) in message
    assert process.exitcode == 1


def _run_with_small_files(config, assets, listener, status):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))  # writing more fails, as it does on a full disk
    run_http_worker(config, assets, listener, status)


def test_tls_is_spoken_where_a_certificate_is_given(start_worker, tmp_path, monkeypatch):
    (tmp_path / "key.pem").write_text(TEST_KEY)
    (tmp_path / "certificate.pem").write_text(TEST_CERTIFICATE)
    monkeypatch.setattr(Worker, "get", lambda self, path: httpx.get(self.url + path, verify=False, trust_env=False))
    worker, _ = start_worker(
        scheme="https", ssl_keyfile=tmp_path / "key.pem", ssl_certfile=tmp_path / "certificate.pem"
    )
    assert worker.url.startswith("https://")
    assert worker.get("/health").status_code == 200


def test_a_model_that_cannot_be_served_is_reported_not_raised(tmp_path, assets):
    from dataclasses import replace

    spawn = multiprocessing.get_context("spawn")
    status, child = spawn.Pipe()
    listener = socket.create_server(("127.0.0.1", 0))
    broken = replace(assets, chat_template="{% if %}")
    config = HttpConfig(endpoints=(f"ipc://{tmp_path}/s",), log_level="error")
    process = spawn.Process(target=run_http_worker, args=(config, broken, listener, child))
    process.start()
    assert status.poll(30)
    kind, message = status.recv()
    assert kind == "failed"
    assert "chat template" in message
    process.join(10)
    assert process.exitcode == 1
    listener.close()


def test_the_overhead_benchmark_counts_one_event_a_token(tmp_path: Path):
    from bench.http_overhead import measure

    figures = measure(tmp_path, streams=4, tokens=10, step_seconds=0.005)
    assert figures["tokens"] == 40
    assert figures["events"] == 40 + 4 * 3  # role, finish, [DONE]
    assert figures["cpu_us_per_token"] > 0
