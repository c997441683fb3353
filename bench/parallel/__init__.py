"""What many ranks and copies of a model cost and bring."""
