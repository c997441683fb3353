"""What is asked of the model, in the terms of no dialect, and its way to the scheduler."""
