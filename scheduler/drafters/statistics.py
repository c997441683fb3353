"""What drafting has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.messages import DrafterStats


@dataclass(slots=True)
class SourceCounters:
    """Of one source."""

    proposed_tokens: int = 0
    accepted_tokens: int = 0
    """Guesses that became output, and so took no step of their own."""
    drafts_by_accepted: list[int] = field(default_factory=list)
    """``[k]``: drafts of which exactly k tokens were accepted."""

    def count(self, num_proposed: int, num_accepted: int) -> None:
        self.proposed_tokens += num_proposed
        self.accepted_tokens += num_accepted
        missing = num_accepted + 1 - len(self.drafts_by_accepted)
        self.drafts_by_accepted.extend([0] * missing)
        self.drafts_by_accepted[num_accepted] += 1

    def snapshot(self) -> DrafterStats:
        return DrafterStats(
            proposed_tokens=self.proposed_tokens,
            accepted_tokens=self.accepted_tokens,
            drafts_by_accepted=list(self.drafts_by_accepted),
        )
