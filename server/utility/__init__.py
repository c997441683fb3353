"""Endpoints around generation: models, tokens, health, metrics, administration."""
