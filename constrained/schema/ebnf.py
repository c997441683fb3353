"""The ``ebnf`` constraint: xgrammar's EBNF (which reads GBNF) or Lark in llguidance's dialect."""

from __future__ import annotations

from constrained.schema.prepared import PreparedGrammar, PrepareOptions
from constrained.spec import GrammarSpec


def prepare_ebnf(spec: GrammarSpec, backend: str, options: PrepareOptions) -> PreparedGrammar:
    """See :func:`constrained.schema.prepare.prepare`."""
    return PreparedGrammar("xgrammar", "ebnf", spec.value)
