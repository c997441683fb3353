"""A real HTTP server on a loopback port, in front of a fake scheduler that speaks the real protocol."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from bench.fake_scheduler import Behaviour, FakeScheduler
from constrained.vocabulary import Vocabulary
from server.app import create_app, create_context
from server.config import HttpConfig
from server.context import ServerContext
from server.models.assets import ModelAssets
from server.worker import uvicorn_config

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level BPE tokenizer with the usual special tokens."""
    tokenizer = HuggingFaceTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog, hello world "] * 8, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def assets(tokenizer_json: Path) -> ModelAssets:
    return ModelAssets(
        name="tiny",
        weights_path=Path("tiny"),
        tokenizer_json=tokenizer_json,
        chat_template=CHAT_TEMPLATE,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        eos_token_ids=(2,),
        add_bos=False,
        context_length=4096,
        created=1700000000,
    )


class RunningServer:
    """A server in a thread, with the fakes behind it: one scheduler, or several groups."""

    def __init__(self, config: HttpConfig, assets: ModelAssets, schedulers: list[FakeScheduler]) -> None:
        self.schedulers = schedulers
        self.scheduler = schedulers[0]
        self.behaviour: Behaviour = self.scheduler.behaviour
        self.context: ServerContext = create_context(config, assets)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._client = self.client()
        self._server = uvicorn.Server(uvicorn_config(create_app(self.context), config))
        self._thread = threading.Thread(target=self._run, name="http-server")
        self._thread.start()
        wait_until(lambda: self._server.started)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    def wait_ready(self) -> None:
        wait_until(lambda: all(group.ready is not None for group in self.context.engine.groups))

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=10, trust_env=False, verify=False, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return self._client.post(path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self._client.get(path, **options)

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=10, **options)

    def close(self) -> None:
        self._client.close()
        self._server.should_exit = True
        self._thread.join(15)
        assert not self._thread.is_alive(), "the server did not end"
        self._listener.close()


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain")
        time.sleep(0.005)


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    return wait_until


StartServer = Callable[..., AbstractContextManager[RunningServer]]
MakeServer = Callable[..., RunningServer]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory, assets: ModelAssets) -> StartServer:
    """Starts servers; ``scheduler_runs=False`` leaves the fakes unstarted, assets and settings may be given."""

    @contextmanager
    def start(
        *,
        scheduler_runs: bool = True,
        behaviour: Behaviour | None = None,
        with_assets: ModelAssets | None = None,
        num_groups: int = 1,
        **settings: Any,
    ) -> Iterator[RunningServer]:
        chosen = with_assets or assets
        folder = tmp_path_factory.mktemp("ipc")
        endpoints = tuple(f"ipc://{folder}/{group}" for group in range(num_groups))
        vocabulary = Vocabulary.from_tokenizer_json(chosen.tokenizer_json)
        fakes = [FakeScheduler(endpoint, vocabulary, behaviour) for endpoint in endpoints]
        if scheduler_runs:
            for fake in fakes:
                fake.start()
        server = RunningServer(HttpConfig(endpoints=endpoints, **settings), chosen, fakes)
        try:
            if scheduler_runs:
                server.wait_ready()
            yield server
        finally:
            server.close()
            for fake in fakes:
                fake.close()

    return start


@pytest.fixture(scope="session")
def shared_server(start_server: StartServer) -> Iterator[RunningServer]:
    """One server for tests that leave nothing behind: bad requests must not harm it."""
    with start_server() as server:
        yield server


@pytest.fixture
def make_server(start_server: StartServer) -> Iterator[MakeServer]:
    """Makes servers that end with the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(start_server(**options))


@pytest.fixture
def server(make_server: MakeServer) -> RunningServer:
    """A server with default settings."""
    return make_server()
