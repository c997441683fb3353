"""Measurements of tool calls."""
