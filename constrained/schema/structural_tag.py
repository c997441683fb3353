"""The ``structural_tag`` constraint: free text with constrained parts between tags."""

from __future__ import annotations

from constrained.schema.prepared import PreparedGrammar, PrepareOptions
from constrained.spec import GrammarSpec


def prepare_structural_tag(spec: GrammarSpec, backend: str, options: PrepareOptions) -> PreparedGrammar:
    """See :func:`constrained.schema.prepare.prepare`."""
    return PreparedGrammar("xgrammar", "structural_tag", spec.value)
