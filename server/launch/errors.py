"""Why the server cannot be started."""

from __future__ import annotations


class StartError(Exception):
    """The server cannot start here as it was asked to; the message is for a person."""
