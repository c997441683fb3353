"""What the HTTP process itself costs for each streamed token: ``python -m bench.http_overhead``.

Three processes: a fake scheduler that gives every running stream one token a step, the real HTTP worker, and a client
that reads all streams. The figure is the worker's own CPU time (``getrusage``, user and system) between the first and
the last request, divided by the streamed tokens; every token is one event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import socket
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.fake_scheduler import Behaviour, FakeScheduler
from constrained.vocabulary import Vocabulary
from scheduler.messages import GenerateRequest
from server.config import HttpConfig
from server.models.assets import ModelAssets
from server.worker import run_http_worker

_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
_CORPUS = ["the quick brown fox jumps over the lazy dog and runs on into the dark wood, hello world "] * 8


def main() -> int:
    """Run, print one JSON line, and return 1 when the figure is above ``--limit``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=300, help="tokens of each stream")
    parser.add_argument("--step-ms", type=float, default=20.0, help="milliseconds between two tokens of a stream")
    parser.add_argument("--limit-us", type=float, default=100.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.streams, options.tokens, options.step_ms / 1000)
    print(json.dumps(figures))
    return int(figures["cpu_us_per_token"] > options.limit_us)


def measure(folder: Path, streams: int, tokens: int, step_seconds: float) -> dict[str, Any]:
    """CPU microseconds of the HTTP worker for each streamed token.

    Parameters
    ----------
    folder
        For the socket and the small tokenizer.
    """
    spawn = multiprocessing.get_context("spawn")
    assets = _assets(folder)
    endpoint = f"ipc://{folder}/scheduler"
    scheduler = spawn.Process(target=_run_scheduler, args=(endpoint, assets.tokenizer_json, step_seconds), daemon=True)
    scheduler.start()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    status, worker_status = spawn.Pipe()
    control, worker_control = spawn.Pipe()
    config = HttpConfig(endpoints=(endpoint,), log_level="warning", metrics_directory=folder)
    worker = spawn.Process(target=_run_worker, args=(config, assets, listener, worker_status, worker_control))
    worker.start()
    try:
        if not status.poll(60):
            raise RuntimeError("the HTTP worker did not start")
        _wait_healthy(port)
        asyncio.run(_read_streams(port, streams, 16))  # warm: templates, routes, connections
        before = _usage(control)
        started = time.perf_counter()
        events = asyncio.run(_read_streams(port, streams, tokens))
        seconds = time.perf_counter() - started
        cpu = _usage(control) - before
    finally:
        worker.terminate()
        worker.join(20)
        scheduler.terminate()
        scheduler.join(20)
        listener.close()
    return {
        "streams": streams,
        "tokens": streams * tokens,
        "events": events,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(streams * tokens / seconds, 1),
        "cpu_us_per_token": round(1e6 * cpu / (streams * tokens), 1),
    }


async def _read_streams(port: int, streams: int, tokens: int) -> int:
    counts = await asyncio.gather(*(_read_stream(port, tokens) for _ in range(streams)))
    return sum(counts)


async def _read_stream(port: int, tokens: int) -> int:
    body = json.dumps(
        {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": tokens, "stream": True}
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    received = await asyncio.wait_for(reader.read(), 300)
    writer.close()
    if b"data: [DONE]" not in received:
        raise RuntimeError(f"the stream broke off: {received[-300:]!r}")
    with_text = received.count(b'"delta":{"content":"')
    if with_text != tokens:
        raise RuntimeError(f"{with_text} events for {tokens} tokens")
    return received.count(b"data: ")


def _run_scheduler(endpoint: str, tokenizer_json: Path, step_seconds: float) -> None:
    vocabulary = Vocabulary.from_tokenizer_json(tokenizer_json)
    letters = [i for i, spelled in enumerate(vocabulary.visible_bytes) if spelled.isalpha()]

    def tokens_of(request: GenerateRequest, choice: int) -> list[int]:
        return (letters * (request.sampling.max_tokens // len(letters) + 1))[: request.sampling.max_tokens]

    behaviour = Behaviour(tokens_of=tokens_of, step_seconds=step_seconds)
    FakeScheduler(endpoint, vocabulary, behaviour).run(threading.Event())


def _run_worker(
    config: HttpConfig, assets: ModelAssets, listener: socket.socket, status: Connection, control: Connection
) -> None:
    def report() -> None:
        while control.recv() == "usage":
            usage = resource.getrusage(resource.RUSAGE_SELF)
            control.send(usage.ru_utime + usage.ru_stime)

    threading.Thread(target=report, daemon=True).start()
    run_http_worker(config, assets, listener, status)


def _usage(control: Connection) -> float:
    control.send("usage")
    seconds: float = control.recv()
    return seconds


def _wait_healthy(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if b" 200 " in connection.recv(100):
                return
        time.sleep(0.05)
    raise RuntimeError("the HTTP worker did not become ready")


def _assets(folder: Path) -> ModelAssets:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return ModelAssets(
        name="fake",
        weights_path=folder,
        tokenizer_json=path,
        chat_template=_TEMPLATE,
        bos_token=None,
        eos_token=None,
        eos_token_ids=(),
        add_bos=False,
        context_length=4096,
    )


if __name__ == "__main__":
    sys.exit(main())
