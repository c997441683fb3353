"""The parts that models are made of; plain functions of tensors, without autograd."""
