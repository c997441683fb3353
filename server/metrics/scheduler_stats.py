"""Counters and gauges of several schedulers, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from scheduler.messages import DrafterStats, SchedulerStats


def total(stats: Sequence[SchedulerStats]) -> SchedulerStats:
    """The sums, of one scheduler or more."""
    if len(stats) == 1:
        return stats[0]
    numbers = [name for name in SchedulerStats.__struct_fields__ if name not in ("call_id", "drafters", "counters")]
    counters: Counter[str] = Counter()
    for each in stats:
        counters.update(each.counters)
    kinds = sorted({kind for each in stats for kind in each.drafters})
    return msgspec.structs.replace(
        stats[0],
        **{name: sum(getattr(each, name) for each in stats) for name in numbers},
        drafters={kind: _drafter([each.drafters[kind] for each in stats if kind in each.drafters]) for kind in kinds},
        counters=dict(counters),
    )


def _drafter(stats: Sequence[DrafterStats]) -> DrafterStats:
    columns = zip_longest(*(each.drafts_by_accepted for each in stats), fillvalue=0)
    return DrafterStats(
        proposed_tokens=sum(each.proposed_tokens for each in stats),
        accepted_tokens=sum(each.accepted_tokens for each in stats),
        drafts_by_accepted=[sum(column) for column in columns],
    )
