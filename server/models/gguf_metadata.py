"""Reading the metadata of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server.models.errors import ModelResolutionError


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Every key of the file's header; arrays as lists.

    Raises
    ------
    ModelResolutionError
        The file is not a GGUF file, or ends before its tensors do.
    """
    from gguf import GGUFReader  # numpy and nothing heavier, yet a tenth of a second that only GGUF files need

    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelResolutionError(f"{path} is not a GGUF file (it does not begin with 'GGUF')")
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        end = max((tensor.data_offset + tensor.n_bytes for tensor in reader.tensors), default=0)
    except OSError as error:
        raise ModelResolutionError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, IndexError, KeyError) as error:
        raise ModelResolutionError(
            f"{path} is damaged or cut short ({error}); download it again ({path.stat().st_size} bytes are here)"
        ) from error
    if end > path.stat().st_size:
        raise ModelResolutionError(
            f"{path} is cut short: {path.stat().st_size} bytes are here, its tensors need {end}; download it again"
        )
    return metadata


def gguf_value(metadata: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    """``metadata[key]`` if it is there and of the type the format gives it."""
    value = metadata.get(key, default)
    if value is not default and not isinstance(value, kind):
        raise ModelResolutionError(f"the GGUF key {key} holds {value!r}, not {kind.__name__}")
    return value
