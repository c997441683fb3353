"""What is asked of a server: named workloads that build the same requests from the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.serve import prose
from bench.serve.schemas import FORMS, Schema, fresh_names, same_name

Message = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One conversation: ``messages`` are sent first, each of ``follow_ups`` after the answer before it."""

    messages: tuple[Message, ...]
    max_tokens: int
    follow_ups: tuple[str, ...] = ()
    fixed_length: bool = False
    """Whether the answer shall have exactly ``max_tokens`` tokens (``ignore_eos``)."""
    form: str | None = None
    schema: Schema | None = None
    """What the answer is validated against."""
    constrained: bool = False
    """Whether ``schema`` is sent as ``response_format``."""

    def body(self, history: tuple[Message, ...]) -> dict[str, Any]:
        """The request fields that say what is asked, with ``history`` as messages."""
        body: dict[str, Any] = {"messages": list(history), "max_tokens": self.max_tokens, "temperature": 0}
        if self.constrained:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": self.form, "strict": True, "schema": self.schema},
            }
        return body


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A named kind of load."""

    name: str
    description: str
    num_clients: int
    """Clients of the closed loop, unless the user says otherwise."""
    num_jobs: int
    num_warm_up: int
    build: Callable[[random.Random, int], Job]
    """The job of an index; ``rng`` is its own."""
    twin_of: str | None = None
    """The workload whose jobs these repeat in another form."""

    def jobs(self, seed: str, count: int) -> list[Job]:
        """The first ``count`` jobs of a seed. Other seeds share no prompt and no fresh schema with it."""
        source = self.twin_of or self.name
        return [self.build(random.Random(f"{seed}/{source}/{index}"), index) for index in range(count)]


def _user(content: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": content},)


def _story(num_words: int, num_output_tokens: int) -> Callable[[random.Random, int], Job]:
    def build(rng: random.Random, index: int) -> Job:
        return Job(
            messages=_user("Continue this story at length. " + prose.paragraph(rng, num_words)),
            max_tokens=num_output_tokens,
            fixed_length=True,
        )

    return build


def _structured(opening: str, *, constrained: bool, cold: bool) -> Callable[[random.Random, int], Job]:
    # The three twins differ in their first word alone: the same work, yet none finds another's prompts in a cache.
    def build(rng: random.Random, index: int) -> Job:
        form = FORMS[index % len(FORMS)]
        prompt = f"{opening} {form.prompt(rng)}"
        return Job(
            messages=_user(prompt),
            max_tokens=200,
            form=form.name,
            schema=form.schema(fresh_names(rng) if cold else same_name),
            constrained=constrained,
        )

    return build


def _shared_prefix(seed: str) -> Callable[[random.Random, int], Job]:
    background = "Answer briefly. Background: " + prose.paragraph(random.Random(f"{seed}/background"), 880)

    def build(rng: random.Random, index: int) -> Job:
        question = f"Question {rng.randrange(10**6)}: what happens after this? {prose.sentence(rng)}"
        messages = ({"role": "system", "content": background}, *_user(question))
        return Job(messages=messages, max_tokens=32, fixed_length=True)

    return build


def _multi_turn(rng: random.Random, index: int) -> Job:
    opening = f"My name is {prose.person(rng)}. Tell me more about this. {prose.paragraph(rng, 64)}"
    follow_ups = tuple(f"And then? {prose.sentence(rng)}" for _ in range(3))
    return Job(messages=_user(opening), max_tokens=48, follow_ups=follow_ups, fixed_length=True)


WORKLOAD_NAMES = (
    "single",
    "chat",
    "structured",
    "structured-plain",
    "structured-cold",
    "shared-prefix",
    "multi-turn",
)
SUITES: dict[str, tuple[str, ...]] = {
    "short": ("single", "chat", "structured", "structured-plain"),
    "full": WORKLOAD_NAMES,
}


def make_workload(name: str, seed: str, *, input_words: int = 80, output_tokens: int = 128) -> Workload:
    """The workload of a name.

    Parameters
    ----------
    name
        One of ``WORKLOAD_NAMES``.
    seed
        Of what all its requests share (the prefix of ``shared-prefix``).
    input_words, output_tokens
        Length of prompts and answers of ``single`` and ``chat``.

    Raises
    ------
    ValueError
        For an unknown name.
    """
    story = _story(input_words, output_tokens)
    match name:
        case "single":
            return Workload(
                name=name,
                description="one client, chat",
                num_clients=1,
                num_jobs=4,
                num_warm_up=1,
                build=story,
            )
        case "chat":
            return Workload(
                name=name,
                description="chat, every prompt new",
                num_clients=16,
                num_jobs=32,
                num_warm_up=2,
                build=story,
            )
        case "structured":
            return Workload(
                name=name,
                description="json_schema, three schemas seen before",
                num_clients=16,
                num_jobs=48,
                num_warm_up=len(FORMS),
                build=_structured("Hello.", constrained=True, cold=False),
            )
        case "structured-plain":
            return Workload(
                name=name,
                description="the prompts of structured, no response_format",
                num_clients=16,
                num_jobs=48,
                num_warm_up=1,
                build=_structured("Welcome.", constrained=False, cold=False),
                twin_of="structured",
            )
        case "structured-cold":
            return Workload(
                name=name,
                description="the prompts of structured, every schema new",
                num_clients=16,
                num_jobs=48,
                num_warm_up=1,
                build=_structured("Greetings.", constrained=True, cold=True),
                twin_of="structured",
            )
        case "shared-prefix":
            return Workload(
                name=name,
                description="one system prompt of about 1,000 tokens for all",
                num_clients=16,
                num_jobs=32,
                num_warm_up=0,
                build=_shared_prefix(seed),
            )
        case "multi-turn":
            return Workload(
                name=name,
                description="conversations of four turns that carry their history",
                num_clients=8,
                num_jobs=16,
                num_warm_up=1,
                build=_multi_turn,
            )
        case _:
            raise ValueError(f"unknown workload {name!r}; there are {', '.join(WORKLOAD_NAMES)}")
