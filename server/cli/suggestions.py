"""What someone meant who wrote a setting that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_OTHER_SERVERS = {
    "model_path": "model",
    "ctx_size": "context_length",
    "max_model_len": "context_length",
    "tensor_parallel_size": "tp",
    "tp_size": "tp",
    "data_parallel_size": "dp",
    "dp_size": "dp",
    "gpu_memory_utilization": "memory_fraction",
    "mem_fraction_static": "memory_fraction",
    "max_num_seqs": "max_running_requests",
    "parallel": "max_running_requests",
    "max_num_batched_tokens": "max_batch_tokens",
    "chunked_prefill_size": "max_batch_tokens",
    "enable_prefix_caching": "prefix_cache",
    "disable_radix_cache": "no_prefix_cache",
    "guided_decoding_backend": "grammar_backend",
    "speculative_draft_model_path": "draft_model",
    "threads": "num_threads",
}
"""Settings of SGLang, vLLM and llama.cpp, and what does the same here."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; did you mean x?`` for a flag, file entry or environment variable, or nothing where none is near."""
    spelled = list(known)
    plain = {_plain(one): one for one in spelled}
    meant = plain.get(_OTHER_SERVERS.get(_plain(name), ""))
    near = [meant] if meant is not None else difflib.get_close_matches(name, spelled, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower().removeprefix("scansion_")
