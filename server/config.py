"""Configuration of one HTTP process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, kw_only=True)
class HttpConfig:
    endpoints: tuple[str, ...]
    """ZMQ address that each group's scheduler binds, ``ipc://`` or loopback ``tcp://``."""

    served_model_names: tuple[str, ...] = ()
    """Names answered for; the first is the one shown. Empty: the assets' name."""
    api_keys: tuple[str, ...] = ()
    """Any of them opens every route; empty leaves the server open. ``/health`` never asks for one."""
    cors_origins: tuple[str, ...] = ()
    """Origins a browser may call from; ``("*",)`` allows all, empty sends no CORS headers."""
    root_path: str = ""
    """Path prefix a reverse proxy strips."""
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    ssl_keyfile_password: str | None = None

    max_body_bytes: int = 8 * 1024 * 1024
    """A longer request body is a 413."""
    header_timeout: float = 30.0
    """Seconds the headers of a request may take to arrive, and those of the first on a new connection."""
    write_timeout: float = 300.0
    """Seconds a client may take nothing of an answer that is waiting for it."""
    body_timeout: float = 60.0
    """Seconds a request body may take to arrive."""
    max_json_depth: int = 256
    """Deepest nesting of a request body."""
    max_choices: int = 128
    """Largest ``n`` and ``best_of``."""
    max_prompts: int = 256
    """Most prompts of one completions request; prompts times ``n`` is bounded by it too (or by ``max_choices``)."""
    max_stop_strings: int = 16
    max_stop_length: int = 1024
    """Characters of one stop string."""
    max_logit_bias_entries: int = 1024
    max_bad_words: int = 256
    max_top_logprobs: int = 20
    max_constraint_bytes: int = 2_000_000
    """Longest schema, pattern or grammar."""

    max_tools: int = 1024
    """Most tools of one request."""
    tool_call_parser: str = "auto"
    """Format of tool calls; ``auto`` reads it from the chat template."""
    reasoning_parser: str = "auto"
    """Format of thinking; ``auto`` reads it from the chat template, ``off`` leaves it in the text."""
    serves_grammars: bool = True
    """Whether the scheduler can constrain answers."""

    template_timeout: float = 2.0
    """Seconds a chat template may run."""
    template_max_chars: int = 32 * 1024 * 1024
    """Longest text a chat template may render."""
    first_answer_timeout: float = 90.0
    """Seconds the scheduler has to admit or reject a request; above the grammar compiler's deadline."""
    request_timeout: float = 3600.0
    """Seconds from admission to the last token."""
    call_timeout: float = 5.0
    """Seconds the scheduler has to answer a flush or a look at its counters."""
    scheduler_timeout: float = 60.0
    """Seconds without a word of the scheduler after which waiting requests end with an error."""
    drain_timeout: float = 30.0
    """Seconds running requests have to end after SIGTERM."""
    keep_alive_timeout: float = 30.0
    """Seconds an idle connection is kept open."""
    retry_after: int = 1
    """``Retry-After`` of a 429 or 503, in seconds."""

    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    access_log: bool = True
    """One line a request."""
    metrics_directory: Path | None = None
    """Where HTTP processes share their counters; needed when there is more than one."""
    docs: bool = True
    """Whether ``/docs`` and ``/openapi.json`` are served."""
