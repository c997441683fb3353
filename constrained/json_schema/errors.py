"""What a specification that cannot be served is answered with."""

from __future__ import annotations


class SchemaError(ValueError):
    """A constraint that is malformed, unsatisfiable, too large, or that nothing here enforces.

    Parameters
    ----------
    message
        What is wrong and what to change, for the person who wrote the constraint.
    pointer
        JSON pointer (RFC 6901) of the keyword inside a schema or structural tag; ``""`` is the whole document. For
        a pattern or a grammar, which have no pointers, the message carries the position.
    """

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer

    def __str__(self) -> str:
        return f"{self.message} (at {self.pointer})" if self.pointer else self.message


class UnenforceableError(SchemaError):
    """A keyword, well formed, that no grammar can enforce. Only this kind may be waved through by ``lenient``."""

    def __init__(self, message: str, pointer: str = "", *, keyword: str = "") -> None:
        super().__init__(message, pointer)
        self.keyword = keyword or pointer.rpartition("/")[2]


class OtherEngineError(SchemaError):
    """A constraint, well formed, that the engine it is prepared for cannot serve exactly, though another may."""
