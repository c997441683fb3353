"""Pages of the KV cache, and the prefix cache over them."""
