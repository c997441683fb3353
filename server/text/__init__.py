"""Chat templates, and text to tokens and back."""
