"""From a JSON Schema document to constraints on a value."""
