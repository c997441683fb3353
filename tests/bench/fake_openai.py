"""An OpenAI-protocol server whose every way of failing can be chosen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Behaviour = Callable[[dict[str, Any], int], str]


class FakeOpenAI:
    """Streams ``words`` one a chunk, unless ``behave(body, index)`` names another way for this request."""

    def __init__(self, behave: Behaviour = lambda body, index: "answer") -> None:
        self.behave = behave
        self.words = ["one ", "two ", "three"]
        self.gap_seconds = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = 0
        self.most_running = 0
        self.released = asyncio.Event()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        way = self.behave(body, len(self.bodies) - 1)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._answer(request, body, way)
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any], way: str) -> web.StreamResponse:
        if way == "refuse":
            return web.json_response({"error": {"message": "no room", "type": "overloaded"}}, status=429)
        if way == "redirect":
            raise web.HTTPFound("http://127.0.0.1:9/v1/chat/completions")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._send(response, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        if way == "empty":
            await self._finish(response, 0)
            return response
        for position, word in enumerate(self.words):
            await asyncio.sleep(self.gap_seconds)
            if position == 1 and way == "stall":
                await self.released.wait()
            if position == 1 and way == "drip":
                while not self.released.is_set():
                    await response.write(b": still here\n\n")
                    await asyncio.sleep(0.05)
            if position == 1 and way == "close":
                assert request.transport is not None
                request.transport.abort()
                return response
            if position == 1 and way == "quiet_end":
                return response
            if position == 1 and way == "error_event":
                await response.write(b'event: error\ndata: {"error": {"message": "the scheduler died"}}\n\n')
                return response
            if position == 1 and way == "garbage":
                await response.write(b"data: {not json}\n\n")
            delta = {"content": word}
            choice: dict[str, Any] = {"index": 0, "delta": delta}
            if body.get("return_token_ids"):
                choice["token_ids"] = [position, position + 100]
            await self._send(response, {"choices": [choice]})
        await self._finish(response, len(self.words))
        return response

    async def _finish(self, response: web.StreamResponse, num_tokens: int) -> None:
        await self._send(response, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 7, "completion_tokens": num_tokens, "prompt_tokens_details": {"cached_tokens": 4}}
        await self._send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")

    async def _send(self, response: web.StreamResponse, payload: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(payload).encode() + b"\n\n")

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake-model", "object": "model"}]})

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Yield the base URL."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        server = TestServer(app)
        await server.start_server(shutdown_timeout=0.1)
        try:
            yield str(server.make_url("/v1"))
        finally:
            self.released.set()
            await server.close()
