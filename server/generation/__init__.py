"""One generation: submitting it, its choices as they come, log-probabilities and usage."""
