"""What must be said under a table so that nobody reads more into it than it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnbench.record import Record, Run
from attnbench.store import figures
from attnbench.store.conditions import environment_of
from attnbench.store.derive import by_round

MOST_OWN_NOTES = 8
CLOCK_SHORTFALL = 0.02
"A clock this much below the highest is said: it is more than the probe's own error."


def remarks(run: Run, records: Sequence[Record]) -> list[str]:
    """Notes that are true of these records, each one line.

    Args:
        run: whose settings and environments hold.
        records: all with a time, under the same conditions; of one case or of several.
    """
    own = list(dict.fromkeys(_own_notes(records)))
    if len(own) > MOST_OWN_NOTES:
        own[MOST_OWN_NOTES:] = [f"{len(own) - MOST_OWN_NOTES} more notes of backends stand in the run file"]
    return [*_ties(records), *_noise(run, records), *_stops(records), *_clocks(run, records), *own]


def _ties(records: Sequence[Record]) -> Iterator[str]:
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.group, record.replicate), []).append(record)
    tied = [(members[0].case_id, *found) for members in groups.values() if (found := _tie(members))]
    for case, winner, others in tied[:3]:
        where = f"{case}: " if len(groups) > 1 else ""
        yield f"no clear winner: {where}{winner} cannot be told apart from {', '.join(others)}"
    if len(tied) > 3:
        yield f"no clear winner in {len(tied) - 3} more cases"


def _tie(records: Sequence[Record]) -> tuple[str, tuple[str, ...]] | None:
    """The fastest and who is within its interval; None for a clear winner or nobody to compare."""
    from attnbench.stats.ranking import clear_winner

    times = {record.backend: by_round(record.time) for record in records if record.time}
    ticks = [record.time.tick_ms or 0.0 for record in records if record.time]
    winner = clear_winner({name: found for name, found in times.items() if found}, tick=max(ticks, default=0.0))
    return None if winner is None or winner.is_clear else (winner.name, winner.tied)


def _noise(run: Run, records: Sequence[Record]) -> Iterator[str]:
    target = run.settings.rel_ci
    noisy = []
    for record in records:
        relative = figures.time_relative(record.time) if record.time else None
        if relative is not None and relative > target:
            noisy.append((relative, record.backend))
    if noisy:
        worst = ", ".join(f"{name} ±{100 * relative:.1f} %" for relative, name in _worst(noisy))
        yield f"noisy: {worst} (wanted ±{100 * target:g} %)"


def _worst(noisy: list[tuple[float, str]]) -> list[tuple[float, str]]:
    by_name: dict[str, float] = {}
    for relative, name in noisy:
        by_name[name] = max(relative, by_name.get(name, 0.0))
    return sorted(((relative, name) for name, relative in by_name.items()), reverse=True)[:4]


def _stops(records: Sequence[Record]) -> Iterator[str]:
    cut = {record.group for record in records if record.time and record.time.stopped_by == "max-seconds"}
    if cut:
        groups = {record.group for record in records}
        where = f" in {len(cut)} of {len(groups)} cases" if len(groups) > 1 else ""
        yield f"stopped by --max-seconds{where}: more time would narrow the intervals"


def _clocks(run: Run, records: Sequence[Record]) -> Iterator[str]:
    shortfalls = []
    for record in records:
        environment = environment_of(run, record)
        highest = environment.sm_max_mhz if environment else None
        clocks = [clock for clock in (record.time.sm_mhz if record.time else ()) if clock is not None]
        if highest and clocks and min(clocks) < (1 - CLOCK_SHORTFALL) * highest:
            shortfalls.append((min(clocks), highest))
    if shortfalls:
        lowest, highest = min(shortfalls)
        yield (
            f"the SM clock fell to {lowest:.0f} of {highest} MHz: times carry that, "
            "speed-ups do not (they are taken within rounds)"
        )


def _own_notes(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        for note in record.notes:
            yield note if note.startswith(f"{record.backend}:") else f"{record.backend}: {note}"
