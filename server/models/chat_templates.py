"""Which chat template a model is served with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from server.models.errors import ModelResolutionError


def template_from_option(option: str | None) -> tuple[str | None, str | None]:
    """Split ``--chat-template`` into (Jinja source, name of one of the model's own templates); one of them or none."""
    if option is None:
        return None, None
    path = Path(option).expanduser()
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), None
        except (OSError, UnicodeDecodeError) as error:
            raise ModelResolutionError(f"--chat-template: {path} cannot be read as UTF-8 text: {error}") from error
    if path.suffix or "/" in option:
        raise ModelResolutionError(f"--chat-template: there is no file {path}")
    return None, option


def choose_template(templates: Mapping[str, str], name: str | None, *, where: str) -> str | None:
    """The template called ``name``, or the model's default; ``None`` when the model has none."""
    if name is not None:
        if name not in templates:
            known = f"its templates are {', '.join(sorted(templates))}" if templates else "it has no templates"
            raise ModelResolutionError(
                f"--chat-template: {where} has no template {name!r} ({known}), and there is no such file"
            )
        return templates[name]
    if not templates:
        return None
    if "default" in templates:
        return templates["default"]
    if len(templates) == 1:
        return next(iter(templates.values()))
    raise ModelResolutionError(
        f"{where} has several chat templates and no default: choose one with --chat-template "
        f"({', '.join(sorted(templates))})"
    )
