"""The command line of ``scansion bench serve``."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any
from urllib.parse import urlsplit

from bench.serve.workloads import SUITES, WORKLOAD_NAMES


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default where there is one to be read."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == "":
            return action.help
        if isinstance(action.default, (tuple, list)):
            return f"{action.help} (default: {','.join(map(str, action.default))})"
        return super()._get_help_string(action)


def parser() -> argparse.ArgumentParser:
    """Every option, with its meaning in the help text."""
    result = argparse.ArgumentParser(
        prog="scansion bench serve",
        description="Put load on an OpenAI-compatible server and measure it. Without --base-url it starts a server of "
        "this installation on a free port for the time of the run.",
        formatter_class=HelpFormatter,
    )
    target = result.add_argument_group("servers")
    target.add_argument("--base-url", type=base_url, metavar="URL", help="a running server, with or without /v1")
    target.add_argument("--model", help="model name to ask for; none: the first of /v1/models")
    target.add_argument("--label", default="scansion", help="name of the server in the results")
    target.add_argument("--api-key", help="bearer token for --base-url")
    target.add_argument(
        "--against-url", type=base_url, metavar="URL", help="a second server: runs alternate and ratios are printed"
    )
    target.add_argument("--against-model", help="model name to ask the second server for")
    target.add_argument("--against-label", default="other", help="name of the second server in the results")
    target.add_argument("--against-api-key", help="bearer token for --against-url")
    target.add_argument(
        "--serve-args", default="", metavar="ARGS", help='options of the server that is started, as "--dtype float32"'
    )
    target.add_argument("--start-timeout", type=positive, default=600.0, metavar="S", help="time to become ready")

    load = result.add_argument_group("load")
    load.add_argument("--suite", choices=sorted(SUITES), default="short", help="a list of workloads")
    load.add_argument(
        "--workloads", type=workload_list, metavar="A,B", help=f"instead of a suite, any of {', '.join(WORKLOAD_NAMES)}"
    )
    arrivals = load.add_mutually_exclusive_group()
    arrivals.add_argument(
        "--clients", type=count, help="clients of the closed loop, except of single; none: the workload's own number"
    )
    arrivals.add_argument("--rate", type=positive, help="instead of a closed loop, Poisson arrivals, jobs per second")
    load.add_argument("--requests", type=count, help="jobs of each run; none: the workload's own number")
    load.add_argument("--repeats", type=count, default=1, help="runs of each workload, each with new prompts")
    load.add_argument("--seed", type=int, help="the same seed asks the same; none: a new one, which is printed")
    load.add_argument("--input-words", type=count, default=80, help="prompt length of single and chat")
    load.add_argument("--output-tokens", type=count, default=128, help="answer length of single and chat")
    load.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for answers of fixed length where the workload has them; an extension of the protocol",
    )
    load.add_argument(
        "--token-ids",
        action="store_true",
        help="ask for return_token_ids, an extension, so that tokens without text and several tokens an event count",
    )
    load.add_argument("--extra-body", type=json_object, default={}, metavar="JSON", help="merged into every body")
    load.add_argument("--drop-fields", default="", metavar="A,B", help="fields not to send")
    load.add_argument("--timeout", type=positive, default=600.0, metavar="S", help="longest time of a request")
    load.add_argument("--stall-timeout", type=positive, default=120.0, metavar="S", help="longest silence of a request")

    output = result.add_argument_group("results")
    output.add_argument("--ttft-slo", type=positive, default=1000.0, metavar="MS", help="goodput: time to first token")
    output.add_argument(
        "--itl-slo", type=positive, default=100.0, metavar="MS", help="goodput: p99 of a request's gaps"
    )
    output.add_argument("--json", metavar="FILE", help="write every run there")
    output.add_argument("--markdown", metavar="FILE", help="write the tables there as Markdown; - for standard output")
    return result


def base_url(text: str) -> str:
    """An HTTP address that ends in ``/v1``."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text!r} is no address like http://127.0.0.1:30000")
    trimmed = text.rstrip("/")
    return trimmed if trimmed.endswith("/v1") else trimmed + "/v1"


def workload_list(text: str) -> tuple[str, ...]:
    """Names separated by commas, each known."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in WORKLOAD_NAMES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)!r}; there are {', '.join(WORKLOAD_NAMES)}")
    return names


def positive(text: str) -> float:
    """A finite number above zero."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def count(text: str) -> int:
    """An integer of at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value
