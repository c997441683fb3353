"""The HTTP edge: bodies, keys, errors, events, connections, logs."""
