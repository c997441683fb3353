"""``scansion grammar check``: try a schema, pattern, grammar or structural tag without a server."""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, cast, get_args

import msgspec

from constrained.spec import GrammarBackendName, GrammarKind, GrammarSpec
from server.cli.errors import UsageError
from server.models.errors import ModelResolutionError
from server.request.constraint_fields import choice_regex

if TYPE_CHECKING:
    from server.cli.grammar_checker import GrammarChecker, Instance, Report

Kind = GrammarKind | Literal["choice"]

_KINDS: tuple[str, ...] = (*get_args(GrammarKind), "choice")
_BACKENDS = tuple(name for name in get_args(GrammarBackendName) if name != "none")
_END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "</s>",
    "<eos>",
    "<end_of_turn>",
)


def main(argv: Sequence[str]) -> int:
    """Run ``scansion grammar``; returns the exit code.

    0: taken, and every instance accepted. 1: refused, or an instance is not accepted. 2: a mistake in the command.
    With ``--jsonl``: 0 once every line has its answer.
    """
    parser = _build_parser()
    options = parser.parse_args(list(argv))
    if getattr(options, "action", None) is None:
        parser.print_help()
        return 2
    try:
        return int(options.action(options))
    except UsageError as error:
        print(f"scansion grammar check: {error}", file=sys.stderr)
        return 2
    except ModelResolutionError as error:
        print(f"scansion grammar check: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scansion grammar", description="Work with constraints without a server.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="say which backend takes a constraint, or why none does",
        description="Says which backend would take a constraint, why one refuses it, how long compiling took, and "
        "which instances it accepts. Exit code 0: taken and all instances accepted; 1: not; 2: a mistake in the "
        "command.",
    )
    check.add_argument("spec", nargs="?", metavar="SPEC", help="file with the constraint; - for standard input")
    check.add_argument("--inline", action="store_true", help="SPEC is the constraint itself, not a file")
    kind_help = "what SPEC is; choice: a JSON list of texts (default: %(default)s)"
    check.add_argument("--kind", choices=_KINDS, default="json_schema", help=kind_help)
    check.add_argument(
        "--instance",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="answers to try: for json_schema any JSON text, respelled as the server would; else the exact text, less "
        "one newline at the end",
    )
    check.add_argument("--exact", action="store_true", help="take instances of json_schema as exact text too")
    check.add_argument("--jsonl", action="store_true", help="read constraints as JSON lines from standard input")
    check.add_argument("--backend", choices=_BACKENDS, default="auto", help="which engine (default: %(default)s)")
    check.add_argument("--strict", action="store_true", help="close objects that do not say additionalProperties")
    check.add_argument("--lenient", action="store_true", help="list what cannot be enforced instead of refusing it")
    check.add_argument(
        "--json-whitespace",
        choices=("compact", "bounded", "any"),
        default="bounded",
        help="between JSON tokens (default: bounded)",
    )
    check.add_argument(
        "--json-number-digits",
        type=int,
        default=20,
        metavar="N",
        help="most digits of an unbounded number before the point, and behind it; 0: any (default: %(default)s)",
    )
    check.add_argument(
        "--json-undeclared-properties",
        choices=("closed", "open"),
        default="closed",
        help="whether objects that declare properties take others where the schema does not say (default: closed)",
    )
    check.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="for one compile (default: 30)")
    check.add_argument("--workers", type=int, default=2, metavar="N", help="compile processes (default: 2)")
    check.add_argument("--model", metavar="MODEL", help="whose tokenizer to use (default: the default model's)")
    check.add_argument("--tokenizer", metavar="PATH", type=Path, help="a tokenizer.json, or a folder with one")
    check.set_defaults(action=_check)
    return parser


def _check(options: argparse.Namespace) -> int:
    if options.jsonl and (options.spec or options.instance):
        raise UsageError("--jsonl reads everything from standard input; leave SPEC and --instance out")
    if not options.jsonl and options.spec is None:
        raise UsageError("name a file with the constraint, or - for standard input, or use --jsonl")
    if options.timeout <= 0 or options.workers < 1:
        raise UsageError("--timeout and --workers must be above zero")
    if not 0 <= options.json_number_digits <= 300:
        raise UsageError("--json-number-digits must be between 0 and 300")
    work = None
    if not options.jsonl:
        work = _read_spec(options), [_read_instance(options, name) for name in options.instance]
    checker = _checker(options)
    try:
        if work is None:
            return _check_lines(checker, options, sys.stdin, sys.stdout)
        return _check_one(checker, options, *work)
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8: byte {error.start}") from error
    finally:
        checker.close()


def _checker(options: argparse.Namespace) -> GrammarChecker:
    from constrained.config import GrammarConfig
    from constrained.errors import InvalidGrammarError
    from constrained.vocabulary import UnsupportedTokenizerError
    from server.cli.grammar_checker import GrammarChecker

    path, eos_token_ids = _tokenizer(options)
    config = GrammarConfig(
        timeout=options.timeout,
        compile_workers=options.workers,
        json_whitespace=options.json_whitespace,
        json_number_digits=options.json_number_digits,
        json_undeclared_properties=options.json_undeclared_properties,
    )
    try:
        return GrammarChecker(path, eos_token_ids, config)
    except (UnsupportedTokenizerError, InvalidGrammarError) as error:
        raise UsageError(str(error)) from error


def _tokenizer(options: argparse.Namespace) -> tuple[Path, tuple[int, ...]]:
    if options.tokenizer is None:
        from server.models import resolve

        assets = resolve(options.model)
        return assets.tokenizer_json, assets.eos_token_ids
    path: Path = options.tokenizer
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise UsageError(f"there is no tokenizer at {path}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        special = {one["content"]: int(one["id"]) for one in data.get("added_tokens", []) if one["special"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no tokenizer.json: {error}") from error
    named = [special[name] for name in _END_TOKENS if name in special]
    if not special:
        raise UsageError(f"{path} has no special token that could end an answer")
    return path, tuple(named) or (max(special.values()),)


def _read_spec(options: argparse.Namespace) -> str:
    if options.inline:
        return cast(str, options.spec)
    return _read(options.spec).removesuffix("\n") if options.kind == "regex" else _read(options.spec)


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"cannot read {name}: {reason}") from error


def _read_instance(options: argparse.Namespace, name: str) -> Instance:
    from server.cli.grammar_checker import Instance

    text = _read(name)
    if options.kind != "json_schema" or options.exact:
        return Instance(text=text.removesuffix("\n"))
    try:
        return Instance(data=json.loads(text, parse_float=Decimal))
    except ValueError:
        return Instance(text=text)  # no JSON: it will not be accepted, and the report says so


def _check_one(checker: GrammarChecker, options: argparse.Namespace, spec_text: str, instances: list[Instance]) -> int:
    spec = _spec(options, options.kind, spec_text)
    report = checker.report(spec, checker.submit(spec), instances)
    if not report.compiled:
        where = f" at {report.pointer}" if report.pointer else ""
        print(f"refused{where}: {report.message}")
        return 1
    print(f"taken by {report.backend}: compiled in {report.compile_ms:.1f} ms, {report.size_bytes:,} bytes")
    for pointer in report.unenforced:
        print(f"not enforced: {pointer}")
    for name, accepted in zip(options.instance, report.accepted, strict=True):
        print(f"{'accepted' if accepted else 'not accepted'}: {name}")
    return 0 if all(report.accepted) else 1


def _check_lines(checker: GrammarChecker, options: argparse.Namespace, lines: Iterable[str], out: TextIO) -> int:
    """One answer a line, in order; compiles run ahead by a few lines."""
    pending: deque[tuple[Any, ...]] = deque()

    def answer() -> None:
        identifier, spec, future, instances = pending.popleft()
        report = checker.report(spec, future, instances)
        out.write(json.dumps(_line(identifier, report)) + "\n")
        out.flush()

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        identifier, spec, instances = _parse_line(options, number, line.rstrip())
        pending.append((identifier, spec, checker.submit(spec), instances))
        if len(pending) > 2 * options.workers:
            answer()
    while pending:
        answer()
    return 0


def _parse_line(options: argparse.Namespace, number: int, line: str) -> tuple[Any, GrammarSpec, list[Instance]]:
    try:
        text = json.loads(line)["spec"]
        # Instances keep their digits; specifications their spelling.
        record = msgspec.convert(json.loads(line, parse_float=Decimal), _Line)
        spec = _spec(options, record.kind, text if isinstance(text, str) else json.dumps(text, ensure_ascii=False))
    except json.JSONDecodeError as error:
        raise UsageError(f"line {number} is not JSON: {error.msg} at column {error.colno}") from error
    except (KeyError, TypeError):
        raise UsageError(f"line {number} is not an object with a 'kind' and a 'spec'") from None
    except RecursionError:
        raise UsageError(f"line {number} is nested too deeply") from None
    except (msgspec.ValidationError, UsageError) as error:
        raise UsageError(f"line {number}: {error}") from error
    for index, one in enumerate(record.instances):
        if (one.text is msgspec.UNSET) == (one.data is msgspec.UNSET):
            raise UsageError(f"line {number}: instance {index} has to have either 'text' or 'data'")
    return record.id, spec, [one.instance() for one in record.instances]


class _LineInstance(msgspec.Struct):
    valid: Any = None
    text: str | msgspec.UnsetType = msgspec.UNSET
    data: Any = msgspec.UNSET

    def instance(self) -> Instance:
        from server.cli.grammar_checker import Instance

        return Instance(data=self.data) if self.text is msgspec.UNSET else Instance(text=self.text)


class _Line(msgspec.Struct):
    """One check of ``--jsonl``."""

    kind: Kind
    spec: Any
    id: Any = None
    instances: list[_LineInstance] = []


def _spec(options: argparse.Namespace, kind: Kind, text: str) -> GrammarSpec:
    if kind == "choice":
        kind, text = "regex", _choices(text)
    return GrammarSpec(kind=kind, value=text, strict=options.strict, lenient=options.lenient, backend=options.backend)


def _choices(text: str) -> str:
    try:
        return choice_regex(msgspec.json.decode(text, type=Annotated[list[_Text], msgspec.Meta(min_length=1)]))
    except msgspec.DecodeError as error:
        raise UsageError(f"a choice is a JSON list of texts that are not empty: {error}") from error


_Text = Annotated[str, msgspec.Meta(min_length=1)]


def _line(identifier: Any, report: Report) -> dict[str, Any]:
    error = None if report.compiled else {"message": report.message, "pointer": report.pointer}
    return {
        "id": identifier,
        "compiled": report.compiled,
        "backend": report.backend,
        "error": error,
        "compile_ms": round(report.compile_ms, 3),
        "size_bytes": report.size_bytes,
        "instances": [{"accepted": one} for one in report.accepted],
    }
