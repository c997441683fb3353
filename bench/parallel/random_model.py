"""A model of random weights with a small tokenizer: what it says means nothing, what it costs is real."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_CORPUS = ["the quick brown fox jumps over the lazy dog and runs on into the dark wood, hello world "] * 8


def write_random_model(
    folder: Path, *, hidden_size: int = 64, num_layers: int = 2, num_heads: int = 8, num_kv_heads: int = 4
) -> Path:
    """
    Everything but the weights, which ``--load-format dummy`` draws.

    Parameters
    ----------
    folder : Path
        Is made.
    hidden_size, num_layers, num_heads, num_kv_heads : int
        Of a Llama; feed-forward layers are four times as wide.

    Returns
    -------
    Path
        ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<end>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 384,
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return folder
