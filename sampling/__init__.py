"""Sampling parameters, penalties, the sampler and log-probabilities."""
