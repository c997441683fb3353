"""The grammar layer. The names below are those of SGLang's grammar layer, and stay importable from here.

They are imported on first use, so that the HTTP process, which needs :mod:`constrained.spec` alone, loads no engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from constrained.engines.base import (
        BaseGrammarBackend,
        BaseGrammarObject,
        InvalidGrammarObject,
        create_grammar_backend,
        register_grammar_backend,
    )
    from constrained.queue.manager import GrammarManager
    from constrained.thinking.reasoner import ReasonerGrammarObject
    from constrained.thinking.reasoner_backend import ReasonerGrammarBackend

__all__ = [
    "BaseGrammarBackend",
    "BaseGrammarObject",
    "GrammarManager",
    "InvalidGrammarObject",
    "ReasonerGrammarBackend",
    "ReasonerGrammarObject",
    "create_grammar_backend",
    "register_grammar_backend",
]

_MODULES = {
    "GrammarManager": "constrained.queue.manager",
    "ReasonerGrammarBackend": "constrained.thinking.reasoner_backend",
    "ReasonerGrammarObject": "constrained.thinking.reasoner",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "constrained.engines.base")), name)
