"""The way to the schedulers: one client for each copy of the model, and the choice among copies."""
