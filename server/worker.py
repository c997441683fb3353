"""Entry function of an HTTP process, and how it ends.

SIGTERM drains: ``/health`` turns 503, new requests are refused, running ones end by themselves or, after the drain
timeout, with an error. A second SIGTERM stops at once. SIGINT is ignored, because a terminal sends it to the whole
process group: the supervisor turns it into SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Generator
from multiprocessing.connection import Connection
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from server.config import HttpConfig
from server.errors import UnavailableError
from server.http.access_log import configure_logging
from server.http.connection import limited
from server.models.assets import ModelAssets

if TYPE_CHECKING:
    from server.context import ServerContext

logger = logging.getLogger("scansion.worker")

_FLUSH_SECONDS = 2.0  # for the last words of requests that are cut off
_TICKS_ALIVE = 5  # turns of uvicorn's main loop, ten of which take a second
_OTHER_FILES = 100  # that this process has open, or opens while it runs, beside its connections


def run_http_worker(config: HttpConfig, assets: ModelAssets, listener: socket.socket, status: Connection) -> None:
    """Serve until told to stop.

    Parameters
    ----------
    listener
        A bound socket; several processes may accept from it.
    status
        Gets ``("ready", summary)`` once connections are accepted, or ``("failed", message)``. The scheduler may still
        be loading then: ``/health`` says so. After it an ``("alive",)`` every few seconds, from the loop that serves.
    """
    configure_logging(config.log_level, config.log_format)
    if config.metrics_directory is not None:
        # prometheus-client chooses its kind of values when it is imported.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(config.metrics_directory)
    from server.app import create_app, create_context
    from server.metrics.registry import reserve_values

    try:
        if config.metrics_directory is not None:
            reserve_values(config.metrics_directory)
        context = create_context(config, assets)
    except (ValueError, OSError) as error:
        status.send(("failed", f"HTTP process: {error}"))
        raise SystemExit(1) from error
    DrainingServer(uvicorn_config(create_app(context), config), context, status).run(sockets=[listener])


def uvicorn_config(app: ASGIApp, config: HttpConfig) -> uvicorn.Config:
    """How connections are served."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=limited(
            header_timeout=config.header_timeout,
            write_timeout=config.write_timeout,
            max_connections=max(1, open_files - _OTHER_FILES),
        ),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=int(config.keep_alive_timeout),
        timeout_graceful_shutdown=int(_FLUSH_SECONDS) + 1,  # hung connections are cut before it
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        ssl_keyfile_password=config.ssl_keyfile_password,
        backlog=2048,
    )


class DrainingServer(uvicorn.Server):
    """uvicorn's server with an end in two stages."""

    def __init__(self, config: uvicorn.Config, context: ServerContext, status: Connection) -> None:
        super().__init__(config)
        self._context = context
        self._status = status
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_terminate)
        self._status.send(("ready", f"HTTP process {os.getpid()} accepts connections"))

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_ALIVE == 0:
            with contextlib.suppress(OSError):  # the parent is gone, and so is this process in a moment
                self._status.send(("alive",))
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # Until the loop runs there is nothing to drain, so SIGTERM keeps its default meaning.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_terminate()

    def _on_terminate(self) -> None:
        if self._drain is not None:
            _exit_at_once()
        self._context.is_draining = True
        self._drain = asyncio.get_running_loop().create_task(self._drain_and_exit(), name="drain")

    async def _drain_and_exit(self) -> None:
        context = self._context
        if context.num_http_requests:
            logger.info("draining; requests in progress: %d", context.num_http_requests)
        if not await self._wait_until_idle(context.config.drain_timeout):
            logger.warning("requests that did not end in time: %d", context.num_http_requests)
            context.engine.fail_all(UnavailableError("The server is shutting down.", code="draining"))
            if not await self._wait_until_idle(_FLUSH_SECONDS):
                self._cut_connections()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Half a body, or an answer that nobody reads.
        cut = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._cut_connections)
        try:
            await super().shutdown(sockets=sockets)
        finally:
            cut.cancel()

    def _cut_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def _wait_until_idle(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._context.num_http_requests and loop.time() < deadline:
            await asyncio.sleep(0.05)
        return not self._context.num_http_requests


def _exit_at_once() -> None:
    os._exit(1)
