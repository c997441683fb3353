"""What every endpoint of one HTTP process shares."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field

from starlette.requests import Request

from scheduler.messages import SchedulerReady
from server.config import HttpConfig
from server.engine.copies import Engine
from server.engine.submission import Submission
from server.errors import ModelNotFoundError, UnavailableError
from server.formats.answer_format import AnswerFormat
from server.metrics.registry import Metrics
from server.models.assets import ModelAssets
from server.text.chat_template import ChatTemplate
from server.text.tokenizer import Tokenizer


@dataclass
class ServerContext:
    config: HttpConfig
    assets: ModelAssets
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    engine: Engine
    metrics: Metrics
    format: AnswerFormat
    is_draining: bool = False
    """SIGTERM has come: running requests end, new ones are refused."""
    num_http_requests: int = 0
    """HTTP requests in progress that have come whole, looks at ``/health`` and ``/metrics`` not counted."""
    running: dict[str, set[Submission]] = field(default_factory=dict)
    """By the answer's id and by the request id, which several may bring, for ``/abort_request``."""
    started: float = field(default_factory=time.time)

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.config.served_model_names or (self.assets.name,)

    @property
    def system_fingerprint(self) -> str:
        """Changes with the model and with what computes it."""
        ready = self.engine.ready
        backend = "" if ready is None else f"{ready.dtype} {ready.device} {ready.attention_backend}"
        source = f"{self.assets.name} {self.assets.weights_path.name} {backend}"
        return "fp_" + hashlib.sha256(source.encode()).hexdigest()[:10]

    def resolve_model(self, name: str | None) -> str:
        """The model to answer with.

        Raises
        ------
        ModelNotFoundError
        """
        if name is None:
            return self.model_names[0]
        if name in self.model_names:
            return name
        raise ModelNotFoundError(
            f"The model {name[:200]!r} does not exist; this server has {', '.join(map(repr, self.model_names))}.",
            param="model",
        )

    def require_ready(self) -> SchedulerReady:
        """The scheduler's description.

        Raises
        ------
        UnavailableError
            The scheduler is not there, or this process drains.
        """
        headers = {"Retry-After": str(self.config.retry_after)}
        if self.is_draining:
            raise UnavailableError("The server is shutting down.", code="draining", headers=headers)
        if self.engine.ready is None:
            raise UnavailableError(
                "The model is not ready: the scheduler is starting or was restarted. Try again shortly.",
                headers=headers,
            )
        return self.engine.ready


def context_of(request: Request) -> ServerContext:
    context: ServerContext = request.app.state.context
    return context
