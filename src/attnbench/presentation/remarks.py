"""Notes below a table that prevent misinterpretation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attnbench.presentation import figures
from attnbench.presentation.block import backend_name
from attnbench.record import INTERRUPTED, Record, Run
from attnbench.store.replicates import by_backend, case_of, tie

MOST_OWN_NOTES = 8
COUNT, COUNTED = re.compile(r"\b\d+(?= of \d+ )"), "\0"
"""A count ("3 of 12"), and its placeholder while notes are compared."""
LEAST_CORES, LEAST_SHARE = 0.25, 0.05
"""Load of other processes on a CPU from which a note is given: cores, and share of all cores."""


def remarks(run: Run, records: Sequence[Record], *, replicated: bool = False) -> list[str]:
    """Return notes that are true of these records, each one line.

    Args:
        run: with the settings and environments.
        records: all timed ones, under the same conditions; of one case or of several.
        replicated: processes are compared, not the samples of one.
    """
    own = list(dict.fromkeys(own_notes(records)))
    if len(own) > MOST_OWN_NOTES:
        own[MOST_OWN_NOTES:] = [f"{len(own) - MOST_OWN_NOTES} more notes of backends stand in the run file"]
    winners = [*_ties(records, replicated=replicated), *_gaps(records)]
    return [*winners, *_load(run, records), *_noise(run, records), *_wild(records), *_stops(records), *own]


def _ties(records: Sequence[Record], *, replicated: bool) -> Iterator[str]:
    cases = _by_case(records)
    tied = [
        (members[0].case_id, *found) for members in cases.values() if (found := tie(members, replicated=replicated))
    ]
    for case, winner, others in tied[:3]:
        where = f"{case}: " if len(cases) > 1 else ""
        yield f"no clear winner: {where}{winner} cannot be distinguished from {', '.join(others)}"
    if len(tied) > 3:
        yield f"no clear winner in {len(tied) - 3} more cases"


def _gaps(records: Sequence[Record]) -> Iterator[str]:
    """Note backends timed in processes in which the baseline has no time, so that fewer processes compare the two."""
    for members in _by_case(records).values():
        for name, own in by_backend(members).items():
            compared = sum(record.speedup is not None for record in own)
            if 0 < compared < len(own):
                where = f"of {compared} of {len(own)} processes"
                yield f"{name}: its speed-up is {where}, the baseline has no time in the others"


def _by_case(records: Sequence[Record]) -> dict[str, list[Record]]:
    cases: dict[str, list[Record]] = {}
    for record in records:
        cases.setdefault(case_of(record), []).append(record)
    return cases


def _noise(run: Run, records: Sequence[Record]) -> Iterator[str]:
    target = run.settings.rel_ci
    noisy = []
    for record in records:
        # If the interval is wider than the value, another note says so.
        relative = figures.time_relative(record.time) if record.time and not figures.wild_time(record.time) else None
        if relative is not None and relative > target:
            noisy.append((relative, record.backend))
    if noisy:
        worst = ", ".join(f"{name} ±{100 * relative:.1f} %" for relative, name in _worst(noisy))
        yield f"noisy: {worst} (wanted ±{100 * target:g} %)"


def _load(run: Run, records: Sequence[Record]) -> Iterator[str]:
    """Note the CPU load of other processes during the measurement."""
    seen = [
        (record.time.other_cores, record.environment)
        for record in records
        if record.time and record.time.other_cores is not None
    ]
    if seen:
        most, place = max(seen, key=lambda one: one[0])
        cores = run.environments[place].cores if place is not None and place < len(run.environments) else None
        if most >= max(LEAST_CORES, LEAST_SHARE * (cores or 0)):
            used = f"{most:.1f} of {cores} cores" if cores else f"{most:.1f} cores"
            yield f"loaded: other processes used {used} meanwhile; times may be longer and noisier for it"


def _wild(records: Sequence[Record]) -> Iterator[str]:
    names = dict.fromkeys(record.backend for record in records if record.time and figures.wild_time(record.time))
    if names:
        yield f"no verdict and no point on a chart: {', '.join(names)}: the interval is wider than the value"


def _worst(noisy: list[tuple[float, str]]) -> list[tuple[float, str]]:
    by_name: dict[str, float] = {}
    for relative, name in noisy:
        by_name[name] = max(relative, by_name.get(name, 0.0))
    return sorted(((relative, name) for name, relative in by_name.items()), reverse=True)[:4]


def _stops(records: Sequence[Record]) -> Iterator[str]:
    ways = {
        "max-seconds": ("stopped by --max-seconds", "more time would narrow the intervals"),
        INTERRUPTED: (INTERRUPTED, "fewer samples than asked for; --resume measures it again"),
    }
    for why, (how, what) in ways.items():
        cut = [record for record in records if record.time and record.time.stopped_by == why]
        if cut:
            (some_cases, some), (cases, groups) = _places(cut), _places(records)
            where = f" in {some} of {groups} processes" if groups > 1 else ""
            if cases > 1:
                where = f" in {some_cases} of {cases} cases"
            yield f"{how}{where}: {what}"


def _places(records: Sequence[Record]) -> tuple[int, int]:
    """Return the number of cases, and of measurements of one case in a process."""
    groups = {(case_of(record), record.replicate) for record in records}
    return len({case for case, _ in groups}), len(groups)


def own_notes(records: Sequence[Record]) -> Iterator[str]:
    """Yield notes of several rows once, with their names; if they differ in a count, ``2 of 12``, with the range.

    A note that only repeats the configuration in the name of its row is left out.  A note of every row, of three or more,
    is one of "all".
    """
    rows: dict[str, dict[str, None]] = {}
    counts: dict[str, set[int]] = {}
    for record in records:
        config = record.backend.partition("[")[2].removesuffix("]")
        repeated = {f"forward {config}", f"backward {config}"} if config else set()
        for note in record.notes:
            if note in repeated:
                continue
            text = note.removeprefix(f"{record.backend}:").strip()
            alike = COUNT.sub(COUNTED, text, count=1)
            rows.setdefault(alike, {})[backend_name(record)] = None
            counts.setdefault(alike, set()).update([int(found[0])] if (found := COUNT.search(text)) else [])
    everybody = {backend_name(record) for record in records}
    for note, names in rows.items():
        low, high = min(counts[note], default=0), max(counts[note], default=0)
        who = "all" if len(names) > 2 and everybody == set(names) else ", ".join(names)
        yield f"{who}: {note.replace(COUNTED, str(low) if low == high else f'{low} to {high}')}"
