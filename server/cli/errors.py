"""Mistakes on the command line and in the settings, told to a person."""

from __future__ import annotations


class UsageError(Exception):
    """What was asked for cannot be done as it was asked; the message says what to change. Exit code 2."""
