"""The ``scansion`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script."""
    # Imported here: a spawned child imports the script again, and needs none of this.
    from server.cli.command import run

    sys.exit(run(sys.argv[1:]))
