"""Why a request's form cannot be served. Every message is written for the client."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class GrammarError(ValueError):
    """The base of everything the grammar layer refuses or gives up on.

    Parameters
    ----------
    message
        What is wrong and what to change.
    pointer
        JSON pointer of the offending keyword, where there is one.
    """

    status = 400
    """HTTP status of the answer."""
    is_permanent = False
    """Whether the same specification always fails the same way, so that the refusal may be cached."""
    code: str | None = None
    """What programs tell it by; ``None``: by the kind of specification that was wrong."""
    field: str | None = None
    """The field of the request to blame; ``None``: the one that held the specification."""

    def __init__(self, message: str, *, pointer: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} (at {self.pointer})" if self.pointer else self.message


class InvalidGrammarError(GrammarError):
    """The specification is wrong, or asks for something that no chosen engine enforces."""

    is_permanent = True


class UnsupportedGrammarError(InvalidGrammarError):
    """The specification may be right, but the engine that was asked for takes none of its kind."""

    code = "unsupported"


class UnknownBackendError(InvalidGrammarError):
    """The request names an engine that nothing registered."""

    code = "invalid_value"
    field = "grammar_backend"


class NothingBeginsError(GrammarError):
    """The request's own stop tokens leave no token that its answer could begin with."""

    code = "invalid_value"
    field = "stop_token_ids"


class GrammarTimeoutError(GrammarError):
    """Compiling took longer than the deadline, on a machine that may have been busy: the same may succeed later."""

    status = 503
    code = "grammar_timeout"


class GrammarTooMuchWorkError(GrammarError):
    """Compiling used a core for nearly the whole deadline: on a machine with nothing else to do it would too."""

    is_permanent = True
    code = "grammar_timeout"


class GrammarTooLargeError(GrammarError):
    """Compiling needed more memory than one grammar may have."""

    code = "grammar_too_large"


class GrammarTooSlowError(GrammarError):
    """Masks of this grammar would hold up every other answer."""

    code = "grammar_too_slow"


class GrammarCompilerCrashedError(GrammarError):
    """The process that compiled this grammar died."""

    code = "grammar_crashed"


class GrammarServiceUnavailableError(GrammarError):
    """No compile process can be started, or the layer is shutting down."""

    status = 503
    code = "grammar_unavailable"


class GrammarDisplacedError(GrammarError):
    """Compiling took long while others waited for every place to be free of such compiles."""

    status = 503
    code = "grammar_unavailable"


class GrammarEngineError(GrammarError):
    """An engine, or this layer, failed in a way that nobody foresaw; the log has the trace."""

    status = 500
    code = "grammar_failed"


class TokenRejectedError(GrammarError):
    """A token was offered that the grammar does not allow: the caller ignored the mask."""

    status = 500


class NoLegalTokenError(GrammarError):
    """The vocabulary has no token that continues the text and the grammar is not complete."""

    status = 500


def reraise_exit(error: BaseException) -> None:
    """Raise ``error`` again where it ends the process and is no fault of one request.

    For guards around one request's calls. They catch :class:`BaseException`, because a panic inside a Rust engine is no
    :class:`Exception`.
    """
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error


def unforeseen(error: BaseException) -> GrammarEngineError:
    """What a client is told of an exception that is no :class:`GrammarError`; its trace goes to the log."""
    logger.error("a request ends because the grammar layer failed", exc_info=error)
    return GrammarEngineError(f"the server failed to make this grammar ({type(error).__name__})")
