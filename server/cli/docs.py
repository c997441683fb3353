"""Write the tables of flags into ``docs/configuration.md``: ``python -m server.cli.docs docs/configuration.md``."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from server.cli.arguments import Setting, settings

_BEGIN = "<!-- begin: written by `make docs` -->"
_END = "<!-- end: written by `make docs` -->"


def with_current_tables(text: str) -> str:
    """``text`` with the part between its two markers written anew from the settings model."""
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}\n\n{_tables()}\n{_END}{after}"


def _tables() -> str:
    parts: list[str] = []
    for group, members in groupby(settings(), key=lambda setting: setting.group):
        parts += [f"### {group}", "", "| flag | default | meaning |", "| --- | --- | --- |"]
        parts += [_row(setting) for setting in members]
        parts.append("")
    return "\n".join(parts)


def _row(setting: Setting) -> str:
    flag = f"--[no-]{setting.flag.removeprefix('--')}" if setting.is_boolean else setting.flag
    values = "" if setting.metavar is None else f" {setting.metavar}"
    default = "" if setting.default_text is None else f"`{setting.default_text}`"
    cells = (f"`{flag}{values}`", default, setting.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_current_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
