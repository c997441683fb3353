"""Endpoints beside the dialects: administration, health, models."""
