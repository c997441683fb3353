"""Milliseconds per part of a step, on the real scheduler, sampler and model runner in one process."""
