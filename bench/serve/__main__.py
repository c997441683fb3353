"""``scansion bench serve``: also ``python -m bench.serve``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from bench.serve.arguments import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every request succeeded, 1 otherwise."""
    command = parser()
    options = command.parse_args(argv)
    if options.against_url is not None and options.label == options.against_label:
        command.error("--label and --against-label are the same")
    if options.serve_args and options.base_url is not None:
        command.error("--serve-args are for a server this command starts: not with --base-url")
    # Imported here: --help needs no HTTP client.
    from bench.serve.run import run

    notes = Console(stderr=True, highlight=False)
    try:
        return run(options, notes)
    except KeyboardInterrupt:
        notes.print("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
