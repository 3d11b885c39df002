"""The interface of a timer, and how timers are found and chosen."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from attnbench.errors import Unavailable, UsageError, refusal, unknown
from attnbench.machine.device import Device

if TYPE_CHECKING:
    from types import ModuleType

    from attnbench.measure.stage import Stage
    from attnbench.measure.subject import Subject

AUTO = {"cuda": ("cupti", "events"), "cpu": ("wall",)}
"""Timers that `--timer auto` tries, best first."""
ALL = "all"
"""Every timer that works."""
EXTRA = "ATTNBENCH_TIMERS"
"""Environment variable: paths of files with further timers, separated as in PATH."""


class Untimed(Unavailable):
    """This timer cannot time one of the subjects, or `others` that it met in the same batch."""

    def __init__(self, subject: str, reason: str, others: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.subject, self.subjects = subject, {subject, *others}


@dataclass(slots=True)
class Reading:
    """One sample as read by a timer."""

    ms: float
    at_s: float | None = None
    "seconds on the host's monotonic clock; None: the sampler's time of the batch"
    sm_mhz: float | None = None
    busy_ms: float | None = None
    host_ms: float | None = None
    kernels: tuple[str, ...] = ()
    kernel_ms: tuple[float, ...] = ()
    "of each kernel"
    waited: bool = False
    "the host was late: the device was idle inside the sample"


class Timer(ABC):
    """One method of timing a batch of calls.  A timer is one file in `measure/timers/`."""

    name: ClassVar[str]
    title: ClassVar[str]
    devices: ClassVar[tuple[str, ...]]
    tick_ms: ClassVar[float] = 0.0
    "smallest step of a reading"
    device_time: ClassVar[bool] = True
    "reads device time only; the medians of two such timers are expected to agree"
    inspects: ClassVar[bool] = True
    "times a single call after a reset of its own; False for one that replays a recording or is given its readings"

    def probe(self, device: Device) -> None:
        """Check that this timer works here.

        Raises:
            Unavailable: with the reason.
        """
        kind = device.kind
        if kind not in self.devices:
            raise Unavailable(
                refusal("timer", "timer", self.name, f"does not work on {kind}", f"for {' and '.join(self.devices)}")
            )

    def accepts(self, subject: Subject) -> str | None:
        """Return why this timer cannot time this subject, or None."""
        return None

    def own_ms(self, stage: Stage) -> float:
        """Return the timer's known share of a reading; it is noted beside short samples."""
        return 0.0

    @abstractmethod
    def measure(
        self, stage: Stage, batch: Sequence[tuple[int, Subject]], lead_s: float, announce: Callable[[int, str], None]
    ) -> list[Reading]:
        """Time each (index, subject) of the batch, in order.

        `announce(index, phase)` is called before each subject's turn, so that a crash can be attributed
        to the last subject announced.
        """


@cache
def all_timers() -> dict[str, Timer]:
    """Return every timer of `measure/timers/` and of the files named by ATTNBENCH_TIMERS.

    Raises:
        UsageError: two timers have the same name, or a file cannot be imported.
    """
    import attnbench.measure.timers as room

    names = [found.name for found in pkgutil.iter_modules(room.__path__)]
    modules = [importlib.import_module(f"{room.__name__}.{name}") for name in names]
    modules += [_load(Path(item)) for item in os.environ.get(EXTRA, "").split(os.pathsep) if item]
    timers: dict[str, Timer] = {}
    for module in modules:
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Timer) and kind.__module__ == module.__name__:
                if kind.name in timers:
                    raise UsageError(refusal("timers", "name", kind.name, "is defined twice", "one timer a name"))
                timers[kind.name] = kind()
    return timers


def choose(name: str, device: Device) -> Timer:
    """Return the timer of that name; for auto the best that works on the device.

    Raises:
        UsageError: no such timer.
        Unavailable: the named timer does not work here; for auto, none does.
    """
    timers = all_timers()
    if name != "auto":
        if name not in timers:
            raise unknown("measure", "timer", name, ["auto", ALL, *timers])
        timers[name].probe(device)
        return timers[name]
    reasons = []
    for candidate in AUTO[device.kind]:
        try:
            timers[candidate].probe(device)
        except Unavailable as why:
            reasons.append(str(why))
        else:
            return timers[candidate]
    raise Unavailable("; ".join(reasons))


def names_of(chosen: str, who: str = "measure", field: str = "timer") -> list[str]:
    """Return the timers that a setting names: one, or several in the order in which they measure, as in "auto,wall".

    Args:
        chosen: the setting.
        who: begins the message of an error.
        field: its name there.

    Raises:
        UsageError: a name is empty, or "all" is one of several.
    """
    names = chosen.split(",")
    if "" in names or (ALL in names and len(names) > 1):
        accepted = f"one, such as auto, several, such as auto,wall, or {ALL}"
        raise UsageError(refusal(who, field, repr(chosen), "is no list of timers", accepted))
    return names


def available(device: Device) -> list[Timer]:
    """Return every timer that works on the device, the first choice of auto first."""
    first = choose("auto", device)
    found = [first]
    for timer in all_timers().values():
        try:
            timer.probe(device)
        except Unavailable:
            continue
        if timer is not first:
            found.append(timer)
    return found


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"attnbench_timer_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(refusal("timers", EXTRA, path.name, "is not a Python file", "paths of .py files"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
