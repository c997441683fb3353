"""Checks a constraint, decides which engine takes it exactly, and rewrites it into what that engine enforces.

Free of torch and of the engines: pure functions of the specification.
"""

from constrained.json_schema.errors import OtherEngineError, SchemaError, UnenforceableError
from constrained.json_schema.prepared import JsonWhitespace, Limits, Notice, PreparedGrammar, PrepareOptions
from constrained.preparation.prepare import engines, prepare

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
