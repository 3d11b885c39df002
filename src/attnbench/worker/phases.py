"""Measurements of a launch besides its samples: its phases, apart or in place, and `Launch.whole`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnbench.backends.base import InPlace
from attnbench.machine.device import Device
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import sample
from attnbench.measure.stage import synchronize
from attnbench.measure.subject import Subject
from attnbench.measure.timer import ALL, Untimed, choose, names_of
from attnbench.measure.times import to_time
from attnbench.record import Settings, Time
from attnbench.worker.entry import Entry, counters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHARE = 4
"Phases may take the time allowed for samples divided by this."


def timed_phases(
    entry: Entry, mode: str, settings: Settings, device: Device, announce: Callable[[str], None]
) -> Mapping[str, Time]:
    """Return the times of a launch's phases, by name; phases timed in place report their own."""
    launch = entry.launch
    if launch is None or not launch.phases:
        return {}
    apart: list[Subject] = []
    inside: list[Subject] = []
    for name, phase in launch.phases.items():
        if isinstance(phase, InPlace):
            inside.append(Subject(name=name, call=phase.call, reset=launch.reset, reported_ms=phase.reported_ms))
        else:
            apart.append(Subject(name=name, call=phase, reset=launch.reset))
    for subject in (*apart, *inside):
        announce(f"phase {subject.name}")
        if subject.reset:
            subject.reset()
        subject.call()
    synchronize(device)
    found: dict[str, Time] = {}
    for timer, subjects in ((_timer(settings.timer, device), apart), ("reported", inside)):
        found |= _sampled(subjects, timer, settings, device, announce)
    entry.run_once(mode)
    return {name: found[name] for name in launch.phases}


def _timer(setting: str, device: Device) -> str:
    """Timer of phases by themselves, so that they add up to a step of the same timer: of several the first.

    CUPTI knows of a phase of host work that it launched nothing; events do not, so the wall clock stands in for them.
    """
    name, *_ = names_of(setting)
    if name not in ("auto", ALL):
        return name
    best = choose("auto", device).name
    return best if best == "cupti" else "wall"


def _sampled(
    subjects: Sequence[Subject], timer: str, settings: Settings, device: Device, announce: Callable[[str], None]
) -> Mapping[str, Time]:
    """Time phases with one timer, or the wall clock for those it cannot time, such as host work with CUPTI."""
    if not subjects:
        return {}
    plan = Plan(
        timer=timer,
        l2=settings.l2,
        warmup=settings.warmup,
        iterations=settings.iterations,
        rel_ci=settings.rel_ci,
        max_seconds=settings.max_seconds / SHARE,
        seed=settings.seed,
    )
    try:
        group = sample(subjects, device=device, plan=plan, announce=lambda index, phase: announce(phase), power=False)
    except Untimed as error:
        alone = [subject for subject in subjects if subject.name in error.subjects]
        if timer in ("wall", "reported") or not alone:
            raise
        found = dict(_sampled([one for one in subjects if one not in alone], timer, settings, device, announce))
        for subject in alone:
            found |= _sampled([subject], "wall", settings, device, announce)
        return found
    return {timing.name: to_time(timing) for timing in group.timings}


def carried_out_whole(entry: Entry, announce: Callable[[str], None], device: Device) -> dict[str, float | None]:
    """Run `Launch.whole` once after the samples; return its counters for the record."""
    launch = entry.launch
    if launch is None or launch.whole is None:
        return {}
    announce("whole")
    measured = launch.whole()
    known = counters(entry.builder.name, {name: value for name, value in measured.items() if value is not None})
    found = {name: known.get(name) for name in measured}
    synchronize(device)
    entry.builder.note(*launch.found_out())
    return found
