"""Checks a constraint, decides which engine takes it exactly, and rewrites it into what that engine enforces.

Free of torch and of the engines: pure functions of the specification.
"""

from constrained.schema.errors import OtherEngineError, SchemaError, UnenforceableError
from constrained.schema.prepare import engines, prepare
from constrained.schema.prepared import JsonWhitespace, Limits, Notice, PreparedGrammar, PrepareOptions

__all__ = [
    "JsonWhitespace",
    "Limits",
    "Notice",
    "OtherEngineError",
    "PrepareOptions",
    "PreparedGrammar",
    "SchemaError",
    "UnenforceableError",
    "engines",
    "prepare",
]
