"""How much of multi-turn prompts is found in the caches: our placement on two copies against taking turns.

Ours is one server with ``--dp 2``; taking turns is two servers, of which each gets every other request. All copies have
the same KV cache. Each conversation begins with a long text of its own, and short questions about it follow; in every
round each conversation has one turn, in random order.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.serve.own_server import own_server

_COPIES = 2
_FLAGS = ("--load-format", "dummy", "--grammar-backend", "none", "--num-threads", "1", "--no-access-log")
_START_SECONDS = 300.0
_ANSWER_TOKENS = 16


@dataclass(frozen=True)
class Workload:
    """Conversations, and the tokens of what their users say."""

    conversations: int
    turns: int
    opening_tokens: int = 512
    question_tokens: int = 32
    seed: int = 0

    @property
    def final_tokens(self) -> int:
        """Tokens of all conversations at their end."""
        return self.conversations * (self.opening_tokens + self.turns * (self.question_tokens + _ANSWER_TOKENS))

    def order(self) -> list[tuple[int, int]]:
        """(conversation, turn) in the order in which they come."""
        draw = random.Random(self.seed)
        order: list[tuple[int, int]] = []
        for turn in range(self.turns):
            order += [
                (conversation, turn) for conversation in draw.sample(range(self.conversations), self.conversations)
            ]
        return order

    def message(self, conversation: int, turn: int) -> list[int]:
        """Token ids of what a user says; ids 1 to 255 are single bytes in the model's vocabulary."""
        draw = random.Random(f"{self.seed} {conversation} {turn}")
        length = self.question_tokens + (0 if turn else self.opening_tokens)
        return [draw.randrange(1, 255) for _ in range(length)]


def compare(model: Path, workload: Workload, *, kv_share: float) -> dict[str, Any]:
    """
    Shares of prompt tokens that came from the caches.

    Parameters
    ----------
    model : Path
        As of :func:`write_random_model`.
    workload : Workload
        Is sent to both, one request after the other.
    kv_share : float
        KV cache of each copy over what all conversations take at their end.
    """
    capacity = int(workload.final_tokens * kv_share) // 16 * 16
    flags = ["--model", str(model), "--kv-cache-tokens", str(capacity), *_FLAGS]
    with own_server([*flags, "--dp", str(_COPIES)], start_seconds=_START_SECONDS) as server:
        while not all(group["stats"] for group in _info(server.base_url)["groups"]):
            time.sleep(0.1)  # healthy is a server whose first copy is there
        ours = _hit_share(workload, [server.base_url])
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(own_server(flags, start_seconds=_START_SECONDS)) for _ in range(_COPIES)]
        in_turns = _hit_share(workload, [server.base_url for server in servers])
    return {
        "conversations": workload.conversations,
        "turns": workload.turns,
        "kv_tokens_per_copy": capacity,
        "final_tokens": workload.final_tokens,
        "hit_share": round(ours, 3),
        "hit_share_in_turns": round(in_turns, 3),
        "ratio": round(ours / in_turns, 2) if in_turns else None,
    }


def _hit_share(workload: Workload, urls: Sequence[str]) -> float:
    texts: dict[int, list[int]] = {conversation: [] for conversation in range(workload.conversations)}
    next_url = itertools.cycle(urls).__next__
    for conversation, turn in workload.order():
        text = texts[conversation]
        text += workload.message(conversation, turn)
        text += _answer(next_url, text)
    stats = [_info(url)["stats"] for url in urls]
    return float(
        sum(each["cached_tokens_total"] for each in stats) / sum(each["prompt_tokens_total"] for each in stats)
    )


def _answer(next_url: Callable[[], str], prompt: list[int]) -> list[int]:
    body = {"prompt": prompt, "max_tokens": _ANSWER_TOKENS, "ignore_eos": True, "temperature": 0}
    body |= {"return_token_ids": True}
    request = urllib.request.Request(
        f"{next_url()}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    token_ids: list[int] = json.load(_open(request))["choices"][0]["token_ids"]
    return token_ids


def _info(url: str) -> dict[str, Any]:
    info: dict[str, Any] = json.load(_open(f"{url.removesuffix('/v1')}/server_info"))
    return info


def _open(request: str | urllib.request.Request) -> Any:
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120)
