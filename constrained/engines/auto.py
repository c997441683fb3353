"""The backend that every server has: it sends each specification to the engine that enforces all of it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from constrained.config import GrammarConfig
from constrained.engines.base import (
    GRAMMAR_BACKEND_REGISTRY,
    BaseGrammarBackend,
    BaseGrammarObject,
    InvalidGrammarObject,
    check_backend_name,
    refuse,
)
from constrained.engines.llguidance_backend import LLGuidanceBackend
from constrained.engines.outlines_backend import OutlinesBackend
from constrained.engines.xgrammar_backend import XGrammarBackend
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError, InvalidGrammarError, UnsupportedGrammarError
from constrained.preparation import (
    Limits,
    OtherEngineError,
    PreparedGrammar,
    PrepareOptions,
    SchemaError,
    engines,
    prepare,
)
from constrained.spec import GrammarSpec

logger = logging.getLogger(__name__)

BUILT_IN_BACKENDS = (LLGuidanceBackend.name, XGrammarBackend.name, OutlinesBackend.name)

_KIND_NAMES = {
    "json_schema": "JSON Schema",
    "regex": "regular expressions",
    "ebnf": "EBNF grammars",
    "lark": "Lark grammars",
    "structural_tag": "structural tags",
}


TryOut = Callable[[BaseGrammarBackend, BaseGrammarObject], None]

_MAX_SECOND_CHARACTERS = 16_384
"""Longest prepared grammar that a second engine is asked to compile. xgrammar takes seconds for longer ones."""


@dataclass(frozen=True)
class Compiled:
    """A compiled specification, the engine that compiled it, and what a lenient request should know."""

    backend: str
    grammar: BaseGrammarObject
    notices: tuple[tuple[str, str], ...] = ()
    """(JSON pointer, message) of what is not enforced."""


def load_plugins(config: GrammarConfig) -> None:
    """Import what registers further backends; :class:`UnknownBackendError` if the configured one is still unknown."""
    for plugin in config.plugins:
        importlib.import_module(plugin)
    check_backend_name(config.backend)


class AutoGrammarBackend(BaseGrammarBackend):
    """Chooses per specification, unless the server's configuration or the specification names a backend.

    What the built-in engines enforce is known to :mod:`constrained.preparation`, which rewrites; a registered backend
    gets the specification as the client wrote it.
    """

    name = "auto"

    def __init__(self, environment: GrammarEnvironment) -> None:
        super().__init__(environment)
        self._backends: dict[str, BaseGrammarBackend] = {}
        load_plugins(environment.config)

    def backend(self, name: str) -> BaseGrammarBackend:
        """The engine of that name, built on first use."""
        if name not in self._backends:
            check_backend_name(name)
            self._backends[name] = GRAMMAR_BACKEND_REGISTRY[name](self.environment)
        return self._backends[name]

    def warm(self) -> None:
        for name in BUILT_IN_BACKENDS:
            self.backend(name).warm()

    def compile_common_rules(self) -> None:
        for name in BUILT_IN_BACKENDS:
            self.backend(name).compile_common_rules()

    def compile(self, spec: GrammarSpec, try_out: TryOut | None = None) -> Compiled:
        """Prepare and compile, where the choice is ours with the first engine that can serve the result.

        Parameters
        ----------
        spec
            What to compile.
        try_out
            Raises for a grammar that must not be served. Another engine is asked then, as where an engine refuses what
            was prepared for it; of several refusals the first is raised.

        Raises
        ------
        GrammarError
            With the JSON pointer of the keyword, where one is to blame.
        """
        wanted = spec.backend or self.environment.config.backend
        if wanted == "none":
            raise UnsupportedGrammarError("the grammar backend 'none' serves no constraint; leave it out")
        if wanted != self.name and wanted not in BUILT_IN_BACKENDS:
            compiled = Compiled(wanted, _valid(self.backend(wanted)._init_value_dispatch(spec)))
            if try_out is not None:
                try_out(self.backend(wanted), compiled.grammar)
            return compiled
        if wanted != self.name:
            return self._compile_with(wanted, self._prepare(spec, wanted), try_out)
        return self._compile_with_any(spec, try_out)

    def _compile_with_any(self, spec: GrammarSpec, try_out: TryOut | None) -> Compiled:
        refusal: Exception | None = None
        unsupported: UnsupportedGrammarError | None = None
        for name in engines(spec):
            try:
                prepared = self._prepare(spec, name)
            except UnsupportedGrammarError as error:
                unsupported = unsupported or error
                continue
            except InvalidGrammarError:
                if refusal is None:
                    raise  # nothing an engine had a part in: the constraint itself is wrong
                continue
            if refusal is not None and len(prepared.text) > _MAX_SECOND_CHARACTERS:
                continue
            try:
                compiled = self._compile_with(name, prepared, try_out)
            except Exception as error:  # of whatever kind: the next engine may not have this fault
                refusal = refusal or error
                continue
            if refusal is not None:
                logger.info("%s serves a grammar that another engine refused: %s", name, refusal)
            return compiled
        failure = refusal or unsupported
        assert failure is not None
        raise failure

    def _compile_with(self, name: str, prepared: PreparedGrammar, try_out: TryOut | None) -> Compiled:
        notices = tuple((notice.pointer, notice.message) for notice in prepared.notices)
        compiled = Compiled(name, _valid(self._dispatch(prepared)), notices)
        if try_out is not None:
            try_out(self.backend(name), compiled.grammar)
        return compiled

    def _prepare(self, spec: GrammarSpec, name: str) -> PreparedGrammar:
        config = self.environment.config
        limits = Limits(max_bytes=config.max_spec_bytes, number_digits=config.json_number_digits or None)
        options = PrepareOptions(
            backend=name,
            whitespace=config.json_whitespace,
            undeclared_properties=config.json_undeclared_properties,
            limits=limits,
        )
        try:
            prepared = prepare(msgspec.structs.replace(spec, backend=name), options)
        except OtherEngineError as error:
            raise UnsupportedGrammarError(error.message, pointer=error.pointer) from error
        except SchemaError as error:
            raise InvalidGrammarError(error.message, pointer=error.pointer) from error
        if prepared.backend != name:
            raise refuse(name, _KIND_NAMES[prepared.kind])
        return prepared

    def _dispatch(self, prepared: PreparedGrammar) -> BaseGrammarObject:
        backend = self.backend(prepared.backend)
        match prepared.kind:
            case "json_schema":
                return backend.dispatch_json(prepared.text)
            case "regex":
                return backend.dispatch_regex(prepared.text)
            case "structural_tag":
                return backend.dispatch_structural_tag(prepared.text)
            case "ebnf":
                return backend.dispatch_ebnf(prepared.text)
            case "lark":
                if not isinstance(backend, LLGuidanceBackend):
                    raise TypeError(f"a Lark grammar was prepared for {prepared.backend}")
                return backend.dispatch_lark(prepared.text)

    def _init_value_dispatch(self, key: GrammarSpec) -> BaseGrammarObject:
        try:
            return self.compile(key).grammar
        except GrammarError as error:
            return InvalidGrammarObject(self.environment, error)

    def dispatch_json(self, value: str) -> BaseGrammarObject:
        return self.compile(GrammarSpec(kind="json_schema", value=value)).grammar

    def dispatch_regex(self, value: str) -> BaseGrammarObject:
        return self.compile(GrammarSpec(kind="regex", value=value)).grammar

    def dispatch_ebnf(self, value: str) -> BaseGrammarObject:
        return self.compile(GrammarSpec(kind="ebnf", value=value)).grammar

    def dispatch_structural_tag(self, value: str) -> BaseGrammarObject:
        return self.compile(GrammarSpec(kind="structural_tag", value=value)).grammar

    def serialize(self, compiled: BaseGrammarObject) -> bytes:
        raise TypeError("a grammar is serialised by the backend that compiled it")

    def deserialize(self, payload: bytes) -> BaseGrammarObject:
        raise TypeError("a grammar is read back by the backend that compiled it")


def _valid(grammar: BaseGrammarObject) -> BaseGrammarObject:
    if isinstance(grammar, InvalidGrammarObject):
        raise grammar.error
    return grammar
