"""Converts a load's ledger to the numbers of a point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnbench.loadtest.ledger import ANSWERED, Ledger
from attnbench.store.load_file import DIGITS, Point, TaskAuc, derived


@dataclass(frozen=True, slots=True)
class Schedule:
    """When requests were due, and latencies counted by the generator."""

    due_ns: Sequence[int]
    "of each issued request, on the ledger's clock"
    origin_ns: int
    latency_ns: Sequence[int] | None = None
    "counted by the generator; None: the server's own"
    words: Mapping[str, Any] = field(default_factory=dict)


def point_of(
    ledger: Ledger,
    schedule: Schedule,
    *,
    scenario: str,
    generator: str,
    asked: float | None,
    slos_ms: Sequence[float],
    cache: Mapping[str, int],
    auc: Sequence[TaskAuc] = (),
    notes: Sequence[str] = (),
) -> Point:
    """Compute the numbers of one load.

    Args:
        ledger: closed.
        schedule: of all issued requests, in their order.
        scenario: server, offline, gaps or replay.
        generator: name of the generator.
        asked: requested rate; None: all at once.
        slos_ms: latency limits.
        cache: counts of this load only.
        auc: of each task, if there are labels.
        notes: for the report.
    """
    places = [place for place, outcome in enumerate(ledger.outcome) if outcome == ANSWERED]
    due, origin = schedule.due_ns, schedule.origin_ns
    done = {place: ledger.done_ns[place] or 0 for place in places}
    started = {place: ledger.started_ns[place] or 0 for place in places}
    latency = [schedule.latency_ns[place] if schedule.latency_ns else done[place] - due[place] for place in places]
    issued = len(ledger.index)
    load_s = (max(due, default=origin) - origin) / 1e9
    sent_s = (max(ledger.issued_ns, default=origin) - origin) / 1e9
    # Not only to the last answer: a server that refuses all but the first requests is no faster for it.
    whole_s = max(load_s, (max(done.values(), default=origin) - origin) / 1e9)
    found = Point(
        scenario=scenario,
        generator=generator,
        asked_rate=asked,
        offered_rate=issued / sent_s if asked is not None and load_s > 0 and sent_s > 0 else None,
        achieved_rate=len(places) / whole_s if whole_s > 0 else None,
        load_s=max(load_s, 0.0),
        whole_s=max(whole_s, 0.0),
        issued=issued,
        answered=len(places),
        refused=ledger.refused,
        backlog=ledger.backlog,
        splits=ledger.splits,
        interrupted=ledger.interrupted,
        latency_ms=_ms(latency),
        at_s=tuple(round((due[place] - origin) / 1e9, 6) for place in places),
        queue_ms=_ms(started[place] - due[place] for place in places),
        late_ms=_ms(at - planned for at, planned in zip(ledger.issued_ns, due, strict=True)),
        batch_size=tuple(one.size for one in ledger.batches),
        host_ms=tuple(round(one.host_ms, DIGITS) for one in ledger.batches),
        device_ms=tuple(round(one.device_ms, DIGITS) for one in ledger.batches if one.device_ms is not None),
        cache=dict(cache),
        auc=tuple(auc),
        loadgen=dict(schedule.words),
        notes=(*notes, *(f"{reason}, for one: {text}" for reason, text in ledger.examples.items())),
    )
    return derived(found, slos_ms)


def _ms(nanoseconds: Iterable[int]) -> tuple[float, ...]:
    """Milliseconds rounded as in a file, so that values shown now equal those in the file."""
    return tuple(round(one / 1e6, DIGITS) for one in nanoseconds)


def by_schedule(ledger: Ledger, due_ns: Sequence[int], origin_ns: int) -> Schedule:
    """Return the schedule of our own generator: the index of an arrival is its place in the schedule."""
    return Schedule([origin_ns + due_ns[index] for index in ledger.index], origin_ns)
