"""``scansion serve``."""

from __future__ import annotations

import argparse

from server.cli.arguments import given_flags
from server.cli.load_settings import load_settings, unknown_variables
from server.launch import launch
from server.launch.console import Console


def run(options: argparse.Namespace) -> int:
    """Serve until stopped; the exit code is one of :mod:`server.launch.exit_codes`."""
    settings = load_settings(given_flags(options), options.config)
    with Console() as console:
        for warning in unknown_variables():
            console.warn(warning)
        return launch(settings, console)
