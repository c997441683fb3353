"""From constraints to shapes: what a value may be, without alternatives that contradict each other."""
