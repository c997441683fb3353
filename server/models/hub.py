"""Models from the Hugging Face hub, through its own library: its cache, token and offline mode hold."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from server.models.errors import ModelResolutionError
from server.models.progress import Progress

_SMALL_FILES = ["*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"]
_WEIGHT_FILES = ["*.safetensors"]
_OTHER_COPIES = ["original/*", "onnx/*", "openvino/*", "*/*.safetensors", "consolidated*.safetensors"]

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def is_repository_id(model: str) -> bool:
    """Whether ``model`` is spelled like ``owner/name``."""
    return _REPOSITORY.fullmatch(model) is not None and ".." not in model and "--" not in model


def fetch_repository(repository: str, *, revision: str | None, weights: bool, progress: Progress) -> Path:
    """The local folder of a hub repository; downloads what is not in the hub's cache.

    Raises
    ------
    ModelResolutionError
        The repository or revision does not exist, is gated, or cannot be reached.
    """
    import httpx
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    progress.stage(f"Fetching {repository} from the Hugging Face hub")
    if not sys.stderr.isatty():
        disable_progress_bars()
    where = repository if revision is None else f"{repository} at revision {revision}"
    try:
        return Path(
            snapshot_download(
                repository,
                revision=revision,
                allow_patterns=_SMALL_FILES + (_WEIGHT_FILES if weights else []),
                ignore_patterns=_OTHER_COPIES,
            )
        )
    except errors.GatedRepoError as error:
        raise ModelResolutionError(
            f"{repository} is gated: accept its terms on its page, then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelResolutionError(f"{repository} has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelResolutionError(
            f"{repository} is neither a file or folder here nor a repository on the hub; if it is private, log in "
            "with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.HFValidationError as error:
        raise ModelResolutionError(f"{repository} is not a valid hub id: {error}") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, httpx.TransportError) as error:
        raise ModelResolutionError(
            f"{where} is not in the hub's cache, and the hub cannot be reached (offline mode or no network). "
            "Check the network and HF_HUB_OFFLINE, or name a local folder or .gguf file."
        ) from error
    except errors.HfHubHTTPError as error:
        raise ModelResolutionError(f"the hub refused {where}: {error}") from error
    except OSError as error:
        raise ModelResolutionError(f"{where} could not be stored: {error}") from error
