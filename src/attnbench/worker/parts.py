"""Parts of a group that were measured one after another, with continuous round numbers.

Speed-ups are ratios within rounds.  Backends that were not sampled together share no round, so every
part has its own round numbers.  The baseline is measured again in each part, and its one record holds the
samples of all parts.
"""

from __future__ import annotations

import dataclasses

from attnbench.record import Record, Time, Yardstick

SEVERAL = "measured again with each part of the group; its samples are of all of them"


def moved(record: Record, *, rounds: int, seconds: float) -> Record:
    """Return `record` with the rounds and times of a part that began later in its group.

    Args:
        record: of a backend in the part.
        rounds: taken in the group before this part.
        seconds: between the beginning of the group and that of the part.
    """
    if not rounds or record.time is None:
        return record
    power = record.power_w
    if power is not None:
        power = dataclasses.replace(power, at_s=_later(power.at_s, seconds))
    timers = {name: _moved(time, rounds, seconds) for name, time in record.timers.items()}
    yardsticks = {
        name: dataclasses.replace(one, rounds=_on(one.rounds, rounds)) for name, one in record.yardsticks.items()
    }
    return dataclasses.replace(
        record, time=_moved(record.time, rounds, seconds), timers=timers, power_w=power, yardsticks=yardsticks
    )


def joined(first: Record, again: Record) -> Record:
    """Join the records of a backend measured in two parts; `store.derive` computes the statistics of all samples.

    Args:
        first: of the earlier part.
        again: of the later one, already moved there; if it has no time, `first` is returned.
    """
    if first.time is None or again.time is None:
        return first
    timers = {name: _joined(time, again.timers[name]) for name, time in first.timers.items() if name in again.timers}
    notes = first.notes if SEVERAL in first.notes else (*first.notes, SEVERAL)
    yardsticks = {
        name: _longer(one, again.yardsticks[name]) for name, one in first.yardsticks.items() if name in again.yardsticks
    }
    return dataclasses.replace(
        first, time=_joined(first.time, again.time), timers=timers, notes=notes, yardsticks=yardsticks
    )


def rounds_taken(record: Record) -> int:
    """One more than the last round of any timer."""
    times = [time for time in (record.time, *record.timers.values()) if time is not None]
    return 1 + max((time.rounds[-1] for time in times if time.rounds), default=-1)


def _moved(time: Time, rounds: int, seconds: float) -> Time:
    return dataclasses.replace(time, rounds=_on(time.rounds, rounds), at_s=_later(time.at_s, seconds))


def _on(numbers: tuple[int, ...], rounds: int) -> tuple[int, ...]:
    return tuple(index + rounds for index in numbers)


def _longer(first: Yardstick, again: Yardstick) -> Yardstick:
    both = {name: getattr(first, name) + getattr(again, name) for name in ("samples_ms", "rounds", "sm_mhz")}
    if len(both["sm_mhz"]) != len(both["samples_ms"]):  # no clock could be read in one of the parts
        both["sm_mhz"] = ()
    return dataclasses.replace(first, **both)


def _joined(first: Time, again: Time) -> Time:
    both = {name: getattr(first, name) + getattr(again, name) for name in ("samples_ms", "rounds", "at_s", "sm_mhz")}
    return dataclasses.replace(first, **both, num_samples=len(both["samples_ms"]))


def _later(at_s: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    return tuple(round(at + seconds, 6) for at in at_s)
