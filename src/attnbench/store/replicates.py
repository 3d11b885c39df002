"""Combine the processes that measured a case into one row per backend.

A process counts once, however many samples it took: the time is the median of the processes' medians, with the spread
of these medians, and the speed-up is that of `stats.replicates.combine_replicates`.  The results are for tables; the
run file and exports of rows keep each process's own figures.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.record import Error, Memory, Record, Run, Speedup, Time
from attnbench.store.derive import by_round, rate_at

Tie = tuple[str, tuple[str, ...]]
"""The fastest backend, and those that cannot be distinguished from it."""


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes behind one row."""

    records: Sequence[Record]
    "records with a time, one per process"
    of: int
    "number of processes that measured the case"

    @property
    def spread_ms(self) -> float | None:
        """Highest minus lowest median of the processes; None if fewer than two have one."""
        medians = [record.time.median_ms for record in self.records if record.time and record.time.median_ms]
        return max(medians) - min(medians) if len(medians) > 1 else None

    def __str__(self) -> str:
        count = len(self.records)
        return f"{count}" if count == self.of else f"{count} of {self.of}"


def is_replicated(run: Run) -> bool:
    """Return whether more than one process has left records of any case."""
    return len({record.replicate for record in run.records}) > 1


def case_of(record: Record) -> str:
    """Return the group of a record under the name of its first replicate, the same for all replicates of a case."""
    return record.group.removesuffix(f"#{record.replicate}") if record.replicate else record.group


def by_backend(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return the records of one case by backend, in the order of the run."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.backend, []).append(record)
    return found


def combine(records: Sequence[Record]) -> list[Record]:
    """Combine the records of all processes of a case into one record per backend.

    Values known only within a process (samples, intervals of the median, percentiles) are None.

    Args:
        records: records with a time, under the same conditions.
    """
    there = {(record.backend, record.replicate): record for record in records}
    return [_combined(members, there) for members in by_backend(records).values()]


def tie(records: Sequence[Record], *, replicated: bool) -> Tie | None:
    """The backend with the lowest median and those that are not shown slower; None for a clear winner, or for nobody.

    Args:
        records: of one case under the same conditions, of all its processes.
        replicated: processes are compared, not the samples of one.
    """
    rounds = {name: _by_process(members) for name, members in by_backend(records).items()}
    medians = {
        name: statistics.median(statistics.median(times.values()) for times in found.values())
        for name, found in rounds.items()
        if found
    }
    if not medians:
        return None
    fastest, *others = sorted(medians, key=lambda name: medians[name])
    verdicts = verdicts_of_fastest(records, fastest, replicated=replicated)
    tied = tuple(name for name in others if verdicts.get(name) != "faster")
    return (fastest, tied) if tied else None


def verdicts_of_fastest(records: Sequence[Record], fastest: str, *, replicated: bool) -> dict[str, str]:
    """Return whether a backend is faster than each other one of its case: faster, same, unclear or slower.

    One whose own time is not known to within itself has no verdict against anyone: unclear.

    Args:
        records: records of one case under the same conditions, of all its processes.
        fastest: the backend.
        replicated: compare processes, not the samples of one.

    Returns:
        Verdict by the other backend; backends that share no round with it are omitted.
    """
    from attnbench.stats.ratio import paired_ratio
    from attnbench.stats.replicates import combine_replicates
    from attnbench.stats.summary import is_wild

    wild = not replicated and any(
        is_wild(one.time.median_ms, one.time.ci_low_ms, one.time.ci_high_ms)
        for one in records
        if one.backend == fastest and one.time
    )
    tick = max((record.time.tick_ms or 0.0 for record in records if record.time), default=0.0)
    rounds = {name: _by_process(members) for name, members in by_backend(records).items()}
    own, found = rounds.pop(fastest, {}), {}
    for name, others in rounds.items():
        pairs = [(times, own.get(process, {})) for process, times in others.items()]
        ratios = [paired_ratio(other, times, tick=tick) for other, times in pairs if other.keys() & times.keys()]
        if ratios:
            verdict = str(combine_replicates(ratios).verdict if replicated else ratios[0].verdict)
            found[name] = "unclear" if wild else verdict
    return found


def _by_process(members: Iterable[Record]) -> dict[int, dict[int, float]]:
    return {record.replicate: found for record in members if record.time and (found := by_round(record.time))}


def _combined(members: Sequence[Record], there: Mapping[tuple[str, int], Record]) -> Record:
    first = members[0]
    time = _time([member.time for member in members if member.time])
    return dataclasses.replace(
        first,
        group=case_of(first),
        replicate=0,
        time=time,
        timers=_times([member.timers for member in members]),
        phases=_times([member.phases for member in members]),
        memory=_memory([member.memory for member in members if member.memory]),
        rate=rate_at(first, time.median_ms),
        errors=_worst([member.errors for member in members]),
        speedup=_speedup(members, there),
        notes=tuple(dict.fromkeys(note for member in members for note in member.notes)),
        power_w=None,
        yardsticks={},
        kernel_ms=(),
    )


def _time(times: Sequence[Time]) -> Time:
    counts = [time.num_samples for time in times if time.num_samples is not None]
    stops = {time.stopped_by for time in times}
    return Time(
        timer=times[0].timer,
        l2=times[0].l2,
        regime=times[0].regime,
        stopped_by=stops.pop() if len(stops) == 1 else None,
        num_samples=sum(counts) if counts else None,
        median_ms=_middle(time.median_ms for time in times),
        mean_ms=None,
        min_ms=None,
        max_ms=None,
        p95_ms=None,
        p99_ms=None,
        busy_ms=_middle(time.busy_ms for time in times),
        host_ms=_middle(time.host_ms for time in times),
        setup_ms=_middle(time.setup_ms for time in times),
        first_call_ms=_middle(time.first_call_ms for time in times),
        sm_mhz=tuple(clock for time in times for clock in time.sm_mhz),
    )


def _times(named: Sequence[Mapping[str, Time]]) -> dict[str, Time]:
    names = dict.fromkeys(name for times in named for name in times)
    return {name: _time([times[name] for times in named if name in times]) for name in names}


def _memory(peaks: Sequence[Memory]) -> Memory | None:
    if not peaks:
        return None
    return Memory(
        peak_allocated_mb=_known(max, (peak.peak_allocated_mb for peak in peaks)),
        peak_reserved_mb=_known(max, (peak.peak_reserved_mb for peak in peaks)),
    )


def _worst(errors: Sequence[Mapping[str, Error]]) -> dict[str, Error]:
    names = dict.fromkeys(name for found in errors for name in found)
    return {
        name: max((found[name] for found in errors if name in found), key=lambda error: error.max_abs or 0.0)
        for name in names
    }


def _speedup(members: Sequence[Record], there: Mapping[tuple[str, int], Record]) -> Speedup | None:
    """Return the combined ratios of the processes; for the baseline itself, its own."""
    from attnbench.stats.ratio import RatioEstimate
    from attnbench.stats.replicates import combine_replicates

    estimates = []
    for member in members:
        own = member.speedup
        if own is None or own.baseline == member.backend:
            continue
        baseline = there.get((own.baseline, member.replicate))
        shared = _rounds(member) & _rounds(baseline) if baseline else set()
        estimates.append(
            RatioEstimate(
                ratio=own.ratio, ci_low=own.ci_low, ci_high=own.ci_high, num_pairs=len(shared), verdict=own.verdict
            )
        )
    if not estimates:
        return members[0].speedup
    found = combine_replicates(estimates)
    name = next(member.speedup.baseline for member in members if member.speedup)
    return Speedup(baseline=name, ratio=found.ratio, ci_low=found.ci_low, ci_high=found.ci_high, verdict=found.verdict)


def _rounds(record: Record) -> set[int]:
    return set(by_round(record.time)) if record.time else set()


def _middle(values: Iterable[float | None]) -> float | None:
    return _known(statistics.median, values)


def _known(function: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return function(known) if known else None
