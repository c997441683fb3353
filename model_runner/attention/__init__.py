"""Attention over the paged KV cache, chosen by a registry."""
