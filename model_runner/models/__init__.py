"""Model families: our fused Llama family, and transformers' own code for the rest."""
