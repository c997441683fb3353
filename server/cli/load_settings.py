"""Put settings together from flags, environment and file, and explain what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from server.cli.errors import UsageError
from server.cli.suggestions import suggestion
from server.settings import ENVIRONMENT_PREFIX, ServeSettings

# Read elsewhere, and not settings of the server.
_OTHER_VARIABLES = frozenset({"SCANSION_CACHE_DIR", "SCANSION_CONFIG", "SCANSION_TEST_GGUF"})


class _Loader(yaml.SafeLoader):
    """YAML 1.2's booleans: ``true`` and ``false`` alone. ``off`` is a value of several settings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_settings(flags: Mapping[str, Any], config_file: Path | None) -> ServeSettings:
    """Settings from flags, then environment, then ``config_file``, then defaults.

    Raises
    ------
    UsageError
        Naming each setting that is wrong, where it came from, and what to change.
    """
    from_environment = EnvSettingsSource(ServeSettings)()
    from_file = {} if config_file is None else _read_file(config_file)
    try:
        return ServeSettings(**{**from_file, **from_environment, **flags})
    except ValidationError as error:
        lines = [_explain(item, flags, from_environment, config_file) for item in error.errors()]
        raise UsageError("\n".join(lines)) from None


def unknown_variables() -> list[str]:
    """A warning for each ``SCANSION_`` variable that sets nothing; not an error, because other software makes them."""
    known = [ENVIRONMENT_PREFIX + name.upper() for name in ServeSettings.model_fields]
    return [
        f"the environment variable {variable} sets nothing{suggestion(variable, known)}"
        for variable in sorted(os.environ)
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in known and variable not in _OTHER_VARIABLES
    ]


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = getattr(error, "problem", None) or error
        raise UsageError(f"--config: {path}{where} is not YAML: {problem}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"--config: {path} must hold settings as `name: value` lines, not {type(data).__name__}")
    normalised: dict[str, Any] = {}
    for key, value in data.items():
        name = str(key).replace("-", "_")
        if name not in ServeSettings.model_fields:
            raise UsageError(f"{path}: there is no setting {str(key)!r}{suggestion(name, ServeSettings.model_fields)}")
        normalised[name] = value
    return {name: value for name, value in normalised.items() if value is not None}


def _explain(item: Any, flags: Mapping[str, Any], environment: Mapping[str, Any], config_file: Path | None) -> str:
    message = _in_words(item)
    if not item["loc"]:
        return message
    name = str(item["loc"][0])
    flag = "--" + name.replace("_", "-")
    if name in flags:
        where = flag
    elif name in environment:
        where = f"{ENVIRONMENT_PREFIX}{name.upper()} ({flag})"
    else:
        where = f"{config_file}: {name} ({flag})"
    if name in ("api_key", "ssl_keyfile_password") or _quotes_value(message, item["input"]):
        return f"{where}: {message}"
    return f"{where}: {message}, got {_shown(item['input'])}"


def _in_words(item: Any) -> str:
    limits = item.get("ctx", {})
    match item["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return "must be a whole number"
        case "float_parsing" | "float_type":
            return "must be a number"
        case "bool_parsing" | "bool_type":
            return "must be true or false"
        case "string_type" | "tuple_type" | "path_type":
            is_scalar = not isinstance(item["input"], (dict, list))
            return "must be a string: put it in quotes" if is_scalar else "must be a string"
        case "string_too_short":
            return "must not be empty"
        case "greater_than_equal":
            return f"must be at least {limits['ge']}"
        case "less_than_equal":
            return f"must be at most {limits['le']}"
        case "greater_than":
            return f"must be greater than {limits['gt']}"
        case "literal_error":
            return f"must be {limits['expected']}"
        case _:
            return str(item["msg"]).removeprefix("Value error, ")


def _quotes_value(message: str, value: object) -> bool:
    texts = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(text, str) and repr(text) in message for text in texts)


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, str) else f"'{value}'"
    return text if len(text) <= 80 else text[:77] + "..."
