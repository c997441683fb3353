"""The ``scansion`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script; Ctrl-C ends it quietly, from the first import on."""
    try:
        # Imported here: a spawned child imports the script again, and needs none of this.
        from server.cli.command import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
