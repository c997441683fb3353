"""Find, convert or make up the ``tokenizer.json`` of a model folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from server.models.cache import derived_dir, locked, replaced_atomically
from server.models.errors import ModelResolutionError
from server.models.progress import Progress

_OLDER_FILES = ("tokenizer.model", "vocab.json", "merges.txt", "tokenizer.tiktoken", "tekken.json", "spiece.model")

# In a process of its own: transformers imports torch, which this one must not hold.
_CONVERT = """
import sys
from transformers import AutoTokenizer
AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True).backend_tokenizer.save(sys.argv[2])
"""


def tokenizer_json_of(folder: Path, config: dict[str, Any], *, made_up_if_missing: bool, progress: Progress) -> Path:
    """The folder's ``tokenizer.json``, or one converted from an older format, or, for dummy weights, a made-up one."""
    path = folder / "tokenizer.json"
    if path.is_file():
        return path
    older = [folder / name for name in _OLDER_FILES if (folder / name).is_file()]
    if older:
        return _converted(folder, older, progress)
    if made_up_if_missing:
        return _made_up(folder, config, progress)
    raise ModelResolutionError(
        f"{folder} holds no tokenizer.json; save the model's tokenizer there (transformers: "
        "AutoTokenizer.from_pretrained(...).save_pretrained(folder)), or name another folder with --tokenizer"
    )


def _converted(folder: Path, sources: list[Path], progress: Progress) -> Path:
    target = derived_dir("tokenizer-1", *sources) / "tokenizer.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target, progress):
        if target.is_file():
            return target
        progress.stage(f"Converting {sources[0].name} to tokenizer.json")
        with replaced_atomically(target) as part:
            result = subprocess.run(
                [sys.executable, "-c", _CONVERT, str(folder), str(part)],
                capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
                cwd=target.parent,  # python -c imports from its working directory first
            )  # fmt: skip
            if result.returncode != 0:
                reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
                raise ModelResolutionError(
                    f"{folder} holds no tokenizer.json, and transformers cannot convert {sources[0].name}: {reason}"
                )
    return target


def _made_up(folder: Path, config: dict[str, Any], progress: Progress) -> Path:
    """One token a byte, then as many words as the vocabulary needs, then one special token: any id has a text."""
    vocab_size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    if not isinstance(vocab_size, int) or vocab_size < 257:
        raise ModelResolutionError(
            f"{folder} holds no tokenizer.json, and one can be made up only for a vocab_size of at least 257 "
            f"(config.json says {vocab_size})"
        )
    target = derived_dir("dummy-tokenizer-1", folder / "config.json") / "tokenizer.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target, progress):
        if not target.is_file():
            pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
            pieces += [f"Ġword{i}" for i in range(vocab_size - 257)]
            tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
            with replaced_atomically(target) as part:
                tokenizer.save(str(part), pretty=False)
    return target
