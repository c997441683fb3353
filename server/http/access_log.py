"""Log lines: one for every request, as text or as JSON, with nothing in them that could forge another line."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from server.config import LogFormat, LogLevel
from server.metrics.request_record import RequestRecord

logger = logging.getLogger("scansion.access")


def log_request(record: RequestRecord, duration: float, *, is_probe: bool) -> None:
    """One line for a request that has ended. Probes come every few seconds: what they expect is no news."""
    to_first_token = record.seconds_to_first_token
    fields: dict[str, Any] = {
        "request_id": record.request_id,
        "method": record.method,
        "path": record.path[:200],
        "status": "disconnected" if record.is_disconnected else record.status,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": _completion_tokens(record),
        "ttft_ms": None if to_first_token is None else round(1000 * to_first_token, 1),
        **_grammar_fields(record),
        "duration_ms": round(1000 * duration, 1),
        "error": None if record.error is None else record.error[:300],
    }
    known = {name: value for name, value in fields.items() if value is not None}
    is_expected = 200 <= record.status < 300 or record.status == 503
    logger.log(logging.DEBUG if is_probe and is_expected else logging.INFO, "request", extra={"fields": known})


def _completion_tokens(record: RequestRecord) -> int | None:
    if record.prompt_tokens is None or (record.is_disconnected and not record.completion_tokens):
        return None  # an unstreamed answer's tokens all come at its end: nobody knows how many there were
    return record.completion_tokens


def _grammar_fields(record: RequestRecord) -> dict[str, Any]:
    grammar = record.grammar
    if grammar is None:
        return {}
    source = "cache" if grammar.is_cache_hit else "joined" if grammar.joined_compile else "compiled"
    return {
        "grammar": grammar.backend,
        "grammar_from": source,
        "grammar_wait_ms": round(1000 * grammar.queue_seconds, 1),
    }


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = _one_line(record.getMessage())
        for name, value in getattr(record, "fields", {}).items():
            text += f" {name}={_quoted(value)}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{clock} {record.levelname.lower():7} {record.name} {text}"


def _one_line(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _quoted(value: Any) -> str:
    text = str(value)
    is_plain = text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if is_plain else json.dumps(text)


def configure_logging(level: LogLevel, form: LogFormat) -> None:
    """Send this process's log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("scansion").setLevel(level.upper())
    logging.getLogger("uvicorn.access").disabled = True
