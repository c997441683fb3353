"""Requests that wait for their grammar, and the agreement of ranks on which are ready."""
