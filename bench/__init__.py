"""Benchmarks a user can run: :mod:`bench.serve` over HTTP, :mod:`bench.step` inside one process."""
