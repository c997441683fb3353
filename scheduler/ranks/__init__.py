"""One loop on many ranks: messages, drafts and draws from rank 0, and the check that plans agree."""
