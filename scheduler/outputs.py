"""Collects what a step has to tell each HTTP process, and sends it as one message."""

from __future__ import annotations

from scheduler.connection import Connection
from scheduler.messages import ChoiceOutput, StepOutput
from scheduler.requests.request import Request


class Outbox:
    """Between two :meth:`flush` calls: the step's outputs by HTTP process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._outputs: dict[bytes, list[ChoiceOutput]] = {}

    def add(self, request: Request) -> None:
        """A choice's new tokens and its end. An unstreamed choice's tokens wait for its end."""
        group = request.group
        if request.finish is None and (not group.message.stream or not request.unsent_token_ids):
            return
        output = ChoiceOutput(
            request_id=group.message.request_id,
            choice_index=request.choice_index,
            token_ids=request.unsent_token_ids,
            held_bytes=0 if request.finish is not None else request.stop_state.held_bytes,
            logprobs=request.unsent_logprobs if group.sampling.logprobs is not None else None,
            finish=request.finish,
        )
        request.unsent_token_ids = []
        request.unsent_logprobs = []
        self._outputs.setdefault(group.client, []).append(output)

    def discard(self, client: bytes) -> None:
        self._outputs.pop(client, None)

    def flush(self) -> None:
        outputs, self._outputs = self._outputs, {}
        for client, choices in outputs.items():
            self._connection.send(client, StepOutput(outputs=choices))
