"""Command line flags, made from the settings model."""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from server.settings import ENVIRONMENT_PREFIX, ServeSettings


@dataclass(frozen=True)
class Setting:
    """One setting as help and docs show it."""

    name: str
    group: str
    description: str
    default: object
    metavar: str | None
    """How its value is called; ``None`` for booleans."""
    choices: tuple[str, ...] | None
    is_boolean: bool
    is_repeated: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def environment_variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def default_text(self) -> str | None:
        """``None`` where the description says what leaving it out means."""
        if self.default is None or self.default in ((), ""):
            return None
        if self.is_boolean:
            return "on" if self.default else "off"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def settings() -> Iterator[Setting]:
    """Every setting of ``scansion serve``, in the order of the model."""
    for name, field in ServeSettings.model_fields.items():
        yield _setting(name, field)


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting; one that is not given leaves no attribute behind."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in settings():
        group = groups.setdefault(setting.group, parser.add_argument_group(setting.group))
        text = setting.description if setting.default_text is None else (
            f"{setting.description} Default: {setting.default_text}."
        )  # fmt: skip
        options: dict[str, Any] = {"dest": setting.name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if setting.is_boolean:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"metavar": setting.metavar, "choices": setting.choices}
            if setting.is_repeated:
                options["action"] = "append"
        group.add_argument(setting.flag, **options)


def given_flags(namespace: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags."""
    return {name: value for name, value in vars(namespace).items() if name in ServeSettings.model_fields}


def _setting(name: str, field: FieldInfo) -> Setting:
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    assert field.description is not None
    kind = _without_none(field.annotation)
    choices = get_args(kind) if get_origin(kind) is Literal else None
    metavar = extra["metavar"]
    return Setting(
        name=name,
        group=str(extra["group"]),
        description=field.description,
        default=field.default,
        metavar="{" + ",".join(choices) + "}" if choices else (None if metavar is None else str(metavar)),
        choices=choices,
        is_boolean=kind is bool,
        is_repeated=get_origin(kind) is tuple,
    )


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(kind for kind in get_args(annotation) if kind is not types.NoneType)
    return annotation
