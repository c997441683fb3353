"""The scheduling process: messages, request state, batch planning, KV pages, prefix cache and the loop."""
