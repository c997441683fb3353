"""Where weights come from: safetensors, GGUF, or a random generator."""
