"""JSON Schema as grammars: reading a schema, solving it into shapes, writing these for an engine."""
