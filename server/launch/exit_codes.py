"""Exit codes of ``scansion serve``."""

from __future__ import annotations

STOPPED = 0
"""Stopped by a signal, after draining."""
FAILED_TO_START = 1
"""The port is taken, or the model cannot be found or loaded."""
BAD_SETTINGS = 2
"""A flag, variable or file says something impossible."""
KEEPS_CRASHING = 3
"""A process died too often to be restarted once more."""


def stopped_at_once(signal_number: int) -> int:
    """A second signal stopped the server without draining: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + signal_number
