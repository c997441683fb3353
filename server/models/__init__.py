"""Finding a model: the embedded default, Hugging Face ids, local folders and GGUF files."""
