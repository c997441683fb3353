"""Prometheus metrics, and what each request leaves in them."""
