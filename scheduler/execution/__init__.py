"""Runs planned steps: rows, masks, forward pass, sampling."""
