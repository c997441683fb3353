"""A further dialect is a folder of its own: this one imports no other dialect, and answers with thinking and calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

import server.app
from sampling.params import SamplingParams
from scheduler.messages import PromptLogprobs
from server.answer.events import CallArguments, CallBegin, CallEnd, End, Event, Reasoning, Text, collect
from server.context import context_of
from server.generation.choices import ChoiceDelta, CollectedChoice
from server.http.body import read_request
from server.http.event_stream import event, respond
from server.request.description import AnswerRequest, Constraint, Conversation
from server.request.generate import StartedAnswer, start_answer
from server.tools.definitions import Tool, read_tools
from server.validation import List, RequestModel

TOOL = {"type": "function", "function": {"name": "get_time"}}
THINKS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<think>\n"
SAID = '<think>Hm.</think>Sure.\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'

router = APIRouter()


class Ask(RequestModel):
    say: str
    tools: List[Tool]
    stream: bool = False


class Told:
    """Writes each event as one line of its own."""

    def __init__(self, started: StartedAnswer) -> None:
        self._reading = started.reading
        assert self._reading is not None
        self._reader = self._reading.reader()

    def whole(self, choices: Sequence[CollectedChoice]) -> dict[str, Any]:
        assert self._reading is not None
        answer = collect(self._reading.reader().read(choices[0].text, choices[0].finish))
        assert answer.end is not None
        calls = [[call.name, call.arguments] for call in answer.calls]
        return {"thought": answer.reasoning, "said": answer.content, "calls": calls, "must_call": answer.end.has_calls}

    def place(self, prompt_index: int, message: PromptLogprobs) -> None:
        raise AssertionError("none were asked for")

    def start(self) -> bytes:
        return b""

    def prompt_logprobs(self, prompt_index: int, message: PromptLogprobs) -> bytes:
        raise AssertionError("none were asked for")

    def delta(self, choice: int, delta: ChoiceDelta) -> bytes:
        return b"".join(event(_told(one)) for one in self._reader.read(delta.text, delta.finish))

    def end(self) -> bytes:
        return b""


def _told(one: Event) -> dict[str, Any]:
    match one:
        case Reasoning(text):
            return {"thought": text}
        case Text(text):
            return {"said": text}
        case CallBegin(name):
            return {"call": name}
        case CallArguments(text):
            return {"arguments": text}
        case CallEnd():
            return {"call_ended": True}
        case End():
            return {"must_call": one.has_calls}


@router.post("/ask")
async def ask(request: Request) -> Response:
    context = context_of(request)
    body = await read_request(Ask, request, context.config)
    tools = read_tools(tools=body.tools, max_tools=8)
    asked = AnswerRequest(
        prompt=Conversation(messages=[{"role": "user", "content": body.say}], tools=tools),
        sampling=SamplingParams(max_tokens=0, temperature=0.0),
        max_tokens=200,
        constraint=Constraint(spec=None, field="form"),
        is_streamed=body.stream,
        field_names={"max_tokens": "length", "messages": "say"},
    )
    started = await start_answer(context, request, asked, context.require_ready(), answer_id="ask-1")
    return await respond(started.generation, Told(started))


def test_a_dialect_of_its_own_answers_whole_and_streamed(make_server, assets, monkeypatch):
    monkeypatch.setattr(server.app, "_ROUTERS", (*server.app._ROUTERS, router))
    running = make_server(with_assets=_thinking(assets))
    ids = running.context.tokenizer.encode_plain(SAID)
    running.behaviour.tokens_of = lambda request, choice: ids
    body = {"say": "What time is it?", "tools": [TOOL]}
    whole = running.post("/ask", body).json()
    assert whole == {"thought": "Hm.", "said": "Sure.", "calls": [["get_time", "{}"]], "must_call": True}
    lines = running.post("/ask", {**body, "stream": True}).text.split("\n\n")
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(one.get("thought", "") for one in told) == "Hm."
    assert "".join(one.get("said", "") for one in told) == "Sure."
    assert [key for one in told for key in one if key in ("call", "call_ended", "must_call")] == [
        "call",
        "call_ended",
        "must_call",
    ]


def test_errors_name_the_fields_of_the_dialect(make_server, assets, monkeypatch):
    monkeypatch.setattr(server.app, "_ROUTERS", (*server.app._ROUTERS, router))
    running = make_server(with_assets=_thinking(assets))
    room = running.context.require_ready().context_length
    long = running.post("/ask", {"say": "word " * room, "tools": [TOOL]})
    assert (long.status_code, long.json()["error"]["param"]) == (400, "say")


def _thinking(assets):
    return replace(assets, chat_template=THINKS)
