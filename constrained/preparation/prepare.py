"""From a constraint as the client wrote it to what an engine compiles: checked, and rewritten where that is needed."""

from __future__ import annotations

from constrained.json_schema.errors import SchemaError
from constrained.json_schema.prepared import PreparedGrammar, PrepareOptions
from constrained.json_schema.reading.document import Document
from constrained.json_schema.solving.shapes import Literal
from constrained.json_schema.solving.solver import Solver
from constrained.json_schema.writing.ebnf_writer import EbnfWriter
from constrained.json_schema.writing.lark import LarkWriter
from constrained.preparation.ebnf import is_lark
from constrained.preparation.outlines import prepare_for_outlines
from constrained.spec import GrammarSpec


def prepare(spec: GrammarSpec, options: PrepareOptions | None = None) -> PreparedGrammar:
    """Check a constraint, choose its engine and write it as that engine takes it exactly.

    Parameters
    ----------
    spec
        The constraint. A backend it names wins over the server's.
    options
        The server's backend, whitespace and limits.

    Raises
    ------
    SchemaError
        With the JSON pointer of the keyword, or the position in the message, where one is to blame.
    """
    options = options or PrepareOptions()
    backend = spec.backend or options.backend
    size = len(spec.value.encode("utf-8", "surrogatepass"))
    if size > options.limits.max_bytes:
        raise SchemaError(f"the constraint is {size:,} bytes long; the limit is {options.limits.max_bytes:,}")
    if "\0" in spec.value and spec.kind != "regex":
        raise SchemaError(f"the constraint holds a NUL character at position {spec.value.index(chr(0))}")
    try:
        return _PREPARE[spec.kind](spec, backend, options)
    except RecursionError:
        raise SchemaError("the constraint is nested too deeply") from None


def engines(spec: GrammarSpec) -> tuple[str, ...]:
    """Engines that may serve a constraint exactly where the choice is ours, in the order in which to try them."""
    if spec.kind == "ebnf":
        return ("llguidance",) if is_lark(spec.value) else ("llguidance", "xgrammar")
    return ("llguidance", "xgrammar")


def solver_of(spec: GrammarSpec, options: PrepareOptions) -> tuple[Solver, frozenset[Literal]]:
    """A JSON Schema's solver and the goal of its root."""
    is_closing = options.undeclared_properties == "closed"
    document = Document(spec.value, options.limits, strict=spec.strict, closes_objects=is_closing)
    solver = Solver(document, lenient=spec.lenient)
    return solver, frozenset({Literal(document.root, True)})


def _json_schema(spec: GrammarSpec, backend: str, options: PrepareOptions) -> PreparedGrammar:
    if backend == "outlines":
        return prepare_for_outlines(spec, options)
    solver, goal = solver_of(spec, options)
    if backend == "xgrammar":
        return PreparedGrammar(backend, "ebnf", EbnfWriter(solver, options.whitespace).write(goal), solver.notices)
    text = LarkWriter(solver, options.whitespace).write(goal)
    return PreparedGrammar("llguidance", "lark", text, solver.notices)


def _regex(spec: GrammarSpec, backend: str, options: PrepareOptions) -> PreparedGrammar:
    from constrained.preparation.regex import prepare_regex

    return prepare_regex(spec, backend, options)


def _ebnf(spec: GrammarSpec, backend: str, options: PrepareOptions) -> PreparedGrammar:
    from constrained.preparation.ebnf import prepare_ebnf

    return prepare_ebnf(spec, backend, options)


def _structural_tag(spec: GrammarSpec, backend: str, options: PrepareOptions) -> PreparedGrammar:
    from constrained.preparation.structural_tag import prepare_structural_tag

    return prepare_structural_tag(spec, backend, options)


_PREPARE = {"json_schema": _json_schema, "regex": _regex, "ebnf": _ebnf, "structural_tag": _structural_tag}
