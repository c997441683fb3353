"""The child processes: what they are told, how they are started, and their status."""
