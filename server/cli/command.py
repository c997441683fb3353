"""Subcommands of ``scansion``, and how their mistakes are shown."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from server.cli import models, serve
from server.cli.arguments import add_setting_flags
from server.cli.errors import UsageError
from server.cli.suggestions import suggestion
from server.models.errors import ModelResolutionError

_BENCHMARKS = {
    "serve": ("bench.serve.__main__", "put load on a server and measure it"),
    "step": ("bench.step.__main__", "milliseconds per part of a step, by row count"),
}


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code: 0, 1 for failure, 2 for a mistake in what was asked for."""
    parser = _build_parser()
    # These parse their own flags, --help included.
    if arguments[:1] == ["bench"] and len(arguments) > 1 and arguments[1] in _BENCHMARKS:
        return _delegate(_BENCHMARKS[arguments[1]][0], arguments[2:])
    if arguments[:1] == ["grammar"]:
        return _delegate("server.cli.grammar", arguments[1:])
    namespace, unknown = parser.parse_known_args(arguments)
    if unknown:
        namespace.parser.error(f"unknown argument {unknown[0]}{_suggestion(unknown[0], namespace.parser)}")
    action: Callable[[argparse.Namespace], int] | None = getattr(namespace, "action", None)
    if action is None:
        namespace.parser.print_help()
        return 2
    try:
        return action(namespace)
    except UsageError as error:
        _complain(namespace.parser.prog, str(error), f"See {namespace.parser.prog} --help.")
        return 2
    except ModelResolutionError as error:
        _complain(namespace.parser.prog, str(error))
        return 1


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scansion",
        description="OpenAI-compatible LLM inference server whose answers always fit the form asked for.",
        formatter_class=_HelpFormatter,
    )
    version = importlib.metadata.version("scansion")
    parser.add_argument("--version", action="version", version=f"scansion {version}")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_serve(commands)
    _add_bench(commands)
    _add_models(commands)
    commands.add_parser("grammar", help="check a schema, regex or grammar without a server", add_help=False)
    return parser


_Commands = argparse._SubParsersAction  # the type has no public name


def _add_serve(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        usage="scansion serve [--model MODEL] [--port PORT] [flags below]",
        description="Serve a model over HTTP. Without flags: the small default model on 127.0.0.1:30000. Every flag is "
        "also an environment variable (--max-body-bytes is SCANSION_MAX_BODY_BYTES) and a line of the --config file "
        "(max_body_bytes: 1000000); a flag wins over the environment, and that over the file.",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    config = os.environ.get("SCANSION_CONFIG")
    parser.add_argument(
        "--config", type=Path, default=config or None, metavar="FILE", help="YAML file of settings, by their names."
    )
    add_setting_flags(parser)
    parser.set_defaults(action=serve.run, parser=parser)


def _add_bench(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("bench", help="measure a server, or the steps of one", formatter_class=_HelpFormatter)
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK")
    for name, (_, description) in _BENCHMARKS.items():
        benchmarks.add_parser(name, help=description, add_help=False)
    parser.set_defaults(parser=parser)


def _add_models(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("models", help="list, fetch and look at models", formatter_class=_HelpFormatter)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser("list", help="models on this machine")
    listing.set_defaults(action=models.list_models, parser=listing)
    for name, action, description in (
        ("fetch", models.fetch, "download a model, so that serving it needs no network"),
        ("show", models.show, "what the server reads from a model"),
    ):
        sub = actions.add_parser(name, help=description, formatter_class=_HelpFormatter)
        sub.add_argument("model", nargs="?", metavar="MODEL", help="as --model of serve; unset: the default model")
        sub.add_argument("--revision", metavar="REVISION", help="branch, tag or commit of a Hugging Face id")
        sub.set_defaults(action=action, parser=sub)
    parser.set_defaults(parser=parser)


def _delegate(module: str, arguments: Sequence[str]) -> int:
    try:
        code: int = importlib.import_module(module).main(list(arguments))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("bench", "server"):
            raise
        _complain("scansion", f"this command needs the package {error.name}: in a checkout, pip install '.[bench]'")
        return 1
    return code


def _suggestion(argument: str, parser: argparse.ArgumentParser) -> str:
    flags = [flag for action in parser._actions for flag in action.option_strings]
    if "--model" in flags and not argument.startswith("-"):
        return f"; did you mean --model {argument}?"
    return suggestion(argument.split("=")[0], flags)


def _complain(program: str, message: str, hint: str = "") -> None:
    for line in [*message.splitlines(), *([hint] if hint else [])]:
        print(f"{program}: {line}", file=sys.stderr)


class _HelpFormatter(argparse.HelpFormatter):
    """As wide as the terminal up to a readable width; flags in a column of their own; ``--no-`` forms kept short."""

    def __init__(self, prog: str) -> None:
        width = max(60, min(shutil.get_terminal_size().columns, 110) - 2)
        super().__init__(prog, max_help_position=30 if width < 90 else 34, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            flag = action.option_strings[0].removeprefix("--")
            return f"--[no-]{flag}"
        return super()._format_action_invocation(action)
