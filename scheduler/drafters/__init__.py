"""What guesses the next tokens of a request; the sampler verifies every guess."""
