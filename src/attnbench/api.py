"""The Python face: time a function, compare several, run a suite, load a run.

    import attnbench

    attnbench.bench(lambda: kernel(x))                       # fn: 8.13 ±0.02 µs  (cupti, cold cache, …)
    attnbench.compare({"torch": f, "mine": g})               # interleaved; ratios with intervals
    attnbench.run("quick").to_pandas()

What people call do_bench for, with an interval, on any function.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.errors import UsageError, refusal, unknown
from attnbench.record import PowerSeries, Run, Speedup, Time

if TYPE_CHECKING:
    from attnbench.machine.device import Device
    from attnbench.measure.sampling import GroupTiming
    from attnbench.measure.sampling import Timing as Sampled


@dataclass(frozen=True, slots=True)
class Timing:
    """One function's time.  `time` has every sample and statistic."""

    name: str
    time: Time
    kernels: tuple[str, ...] = ()
    "device kernels of one call, in order"
    kernel_ms: tuple[float, ...] = ()
    "median of each"
    power: PowerSeries | None = None
    notes: tuple[str, ...] = ()
    timers: Mapping[str, Time] | None = None
    "with timer='all': the same function by every timer"

    @property
    def median_ms(self) -> float:
        """Median of the samples, ms."""
        return statistics.median(self.time.samples_ms)

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """95 % interval of the median, ms; None below six samples."""
        low, high = self.time.ci_low_ms, self.time.ci_high_ms
        return None if low is None or high is None else (low, high)

    @property
    def sm_mhz(self) -> float | None:
        """Median SM clock while it was sampled; None on a CPU."""
        seen = [clock for clock in self.time.sm_mhz if clock]
        return statistics.median(seen) if seen else None

    def __str__(self) -> str:
        return f"{self.name}: {_figures(self)}  ({_circumstances(self)})"


@dataclass(frozen=True, slots=True)
class Comparison(Mapping[str, Timing]):
    """Several functions measured in turn.  A mapping from name to `Timing`."""

    timings: Mapping[str, Timing]
    baseline: str
    speedups: Mapping[str, Speedup]
    "of each other function against the baseline; above 1 is faster"

    def __getitem__(self, name: str) -> Timing:
        return self.timings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.timings)

    def __len__(self) -> int:
        return len(self.timings)

    def speedup(self, name: str) -> Speedup:
        """Baseline time over this function's time, within rounds.

        Raises:
            UsageError: no such function, or it is the baseline.
        """
        if name not in self.speedups:
            raise unknown("compare", "name", name, self.speedups)
        return self.speedups[name]

    def assert_speedup(self, name: str, *, at_least: float) -> None:
        """Fail a test where the whole interval of a speed-up lies below a bound.

        Raises:
            AssertionError: it does; a ratio that is only not known well enough passes.
        """
        found = self.speedup(name)
        highest = found.ratio if found.ci_high is None else found.ci_high
        if highest < at_least:
            raise AssertionError(f"{name} is {_speedup(found)} against {self.baseline}; at least {at_least:g}x wanted")

    def __str__(self) -> str:
        width = max(len(name) for name in self.timings)
        lines = [f"measured in turn, speed-up against {self.baseline} ({_circumstances(self.timings[self.baseline])})"]
        for name, timing in self.timings.items():
            line = f"  {name:{width}}  {_figures(timing):>17}"
            if name in self.speedups:
                line += f"  {_speedup(self.speedups[name])}"
            lines.append(line)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Result:
    """A run with what one does with it."""

    run: Run

    def to_pandas(self) -> Any:
        """One row a record, the columns of the CSV export.

        Raises:
            Unavailable: pandas is not installed.
        """
        from attnbench.store.frame import to_pandas

        return to_pandas(self.run)

    def save(self, path: str | Path) -> Path:
        """Write the run file."""
        from attnbench.store.runfile import write

        return write(self.run, Path(path))

    def __str__(self) -> str:
        import io

        from rich.console import Console

        from attnbench.report.table import render_run

        text = io.StringIO()
        render_run(self.run, Console(file=text, width=120))
        return text.getvalue().rstrip()


def bench(
    fn: Callable[[], Any], *, name: str | None = None, device: str = "auto", reset: Callable[[], None] | None = None,
    timer: str = "auto", l2: str = "auto", regime: str = "burst", warmup: int | None = None,
    iterations: int | None = None, rel_ci: float = 0.01, max_seconds: float = 1.0,
) -> Timing:
    """Time one function.

    Args:
        fn: called without arguments; on a GPU what it launches on the current stream is timed.
        name: for printing; the function's own name by default.
        device: auto (the current GPU if there is one, else the CPU), cpu, cuda or cuda:N.
        reset: untimed, before each call.
        timer: auto, all, or a name of `attnbench list timers`.
        l2: auto (cold on a GPU), cold or warm.
        regime: burst or sustained.
        warmup: calls before the first sample; by default enough for clocks to settle.
        iterations: samples; by default until `rel_ci` or `max_seconds`.
        rel_ci: stop when the 95 % interval of the median is within this share of it.
        max_seconds: stop after this much sampling.

    Raises:
        UsageError: an argument is wrong.
        Unavailable: the timer or device asked for is not there.
    """
    name = name or getattr(fn, "__name__", "fn").replace("<lambda>", "fn")
    plan = {"timer": timer, "l2": l2, "regime": regime, "warmup": warmup, "iterations": iterations, "rel_ci": rel_ci,
            "max_seconds": max_seconds}
    group, seconds = _sample({name: fn}, device, reset, plan)
    return _timing(group, 0, seconds)


def compare(
    functions: Mapping[str, Callable[[], Any]], *, baseline: str | None = None, device: str = "auto",
    timer: str = "auto", l2: str = "auto", regime: str = "burst", warmup: int | None = None,
    iterations: int | None = None, rel_ci: float = 0.01, max_seconds: float = 2.0,
) -> Comparison:
    """Time several functions in turn, round by round, and compare them within rounds.

    Args:
        functions: by name; called without arguments.
        baseline: name to compare with; the first by default.
        device: as for `bench`, as are the others; `rel_ci` is of the ratios, `max_seconds` of all together.

    Raises:
        UsageError: fewer than two functions, an unknown baseline, or another wrong argument.
        Unavailable: the timer or device asked for is not there.
    """
    from attnbench.measure.timer import all_timers
    from attnbench.stats.ratio import paired_ratio

    if not isinstance(functions, Mapping) or not all(isinstance(name, str) for name in functions):
        raise UsageError(refusal("compare", "functions", type(functions).__name__, "does not name them",
                                 "a dict of names and functions"))
    if len(functions) < 2:
        raise UsageError(refusal("compare", "functions", len(functions), "are too few", "two or more, by name"))
    first = baseline or next(iter(functions))
    if first not in functions:
        raise unknown("compare", "baseline", first, functions)
    ordered = {first: functions[first], **functions}  # the sampler compares with its first
    plan = {"timer": timer, "l2": l2, "regime": regime, "warmup": warmup, "iterations": iterations, "rel_ci": rel_ci,
            "max_seconds": max_seconds}
    group, seconds = _sample(ordered, device, None, plan)
    by_name = {timing.name: _timing(group, index, seconds) for index, timing in enumerate(group.timings)}
    tick = all_timers()[group.timings[0].timer].tick_ms
    rounds = {name: dict(zip(t.time.rounds, t.time.samples_ms, strict=True)) for name, t in by_name.items()}
    speedups = {}
    for name in functions:
        if name != first:
            found = paired_ratio(rounds[first], rounds[name], tick=tick)
            speedups[name] = Speedup(baseline=first, ratio=found.ratio, ci_low=found.ci_low, ci_high=found.ci_high,
                                     verdict=found.verdict)
    return Comparison({name: by_name[name] for name in functions}, first, speedups)


def load(path: str | Path) -> Result:
    """Read a run file; every statistic is worked out again from its samples.

    Raises:
        RunFileError: it cannot be read; the message says where and why.
    """
    from attnbench.store.runfile import read

    return Result(read(Path(path)))


def run(
    suite: str | Path = "quick", *, device: str = "auto", backends: str | Sequence[str] = (),
    baseline: str | None = None, files: str | Path | Sequence[str | Path] = (), save: str | Path | None = None,
    axes: Mapping[str, Any] | None = None, **settings: Any,
) -> Result:
    """Run a suite in worker processes, as `attnbench run` does.

    Args:
        suite: a shipped suite's name or the path of a TOML file.
        device: auto, cpu, cuda or cuda:N.
        backends: names in place of the suite's.
        baseline: to compare with.
        files: paths of files with backends of your own.
        save: run file, written after every group; where a history is beside it, or the environment names one
            (``ATTNBENCH_HISTORY``), the finished run is added to that.
        axes: a value or several by axis name, in place of the suite's.
        settings: further fields of `record.Settings`.

    Raises:
        UsageError: something of the request is wrong; nothing was measured.
        Unavailable: the device, the timer or the clocks asked for are not there.
        NothingToRun: no backend of the request runs on this kind of device.
    """
    from attnbench.cli.request import check_settings
    from attnbench.machine.devices import resolve
    from attnbench.store.files import check_writable
    from attnbench.store.runfile import new_id, now
    from attnbench.suites.load import load_suite
    from attnbench.suites.plan import Request, build
    from attnbench.sweep.run import execute

    place, suite = resolve(device), str(suite)
    paths = tuple(str(file) for file in _several(files))
    asked = {name: value for name, value in settings.items() if value is not None}
    values = {name: _several(value) for name, value in (axes or {}).items()}
    request = Request(
        suite=load_suite(suite, place.kind), device=str(place), backends=_several(backends), baseline=baseline,
        files=paths, axes=values, settings=_settings(asked),
    )
    words = {"device": device if device != "auto" else None, "backends": list(request.backends), "baseline": baseline,
             "files": [Path(path).name for path in paths], "axes": values, **asked}
    shown = ", ".join([repr(Path(suite).name), *(f"{name}={word!r}" for name, word in words.items()
                                                 if word not in (None, [], {}))])
    planned = build(request, run_id=new_id(), command=f"attnbench.run({shown})", started=now())
    check_settings(planned)
    if save is not None:
        check_writable(save)
    found = Result(execute(planned, path=None if save is None else Path(save), backend_files=paths))
    if save is not None:
        _remember(Path(save))
    return found


def _remember(path: Path) -> None:
    """Add a run file to the history that is there; a script gets no database it did not ask for."""
    from attnbench.store.history.writing import keep

    missed = keep(path, make=False)
    if missed is not None:
        warnings.warn(missed, stacklevel=3)


def _several(value: Any) -> tuple[Any, ...]:
    """One value or several; a text is one."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def _settings(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Hold settings against what the command line accepts of them."""
    from attnbench.suites.settings import SETTINGS

    known = {one.name: one.parse for one in SETTINGS if one.name != "device"}
    found: dict[str, Any] = {}
    for name, value in asked.items():
        if name in ("check", "measure") and isinstance(value, bool):  # verbs of the command line
            found[name] = value
            continue
        if name not in known:
            raise unknown("attnbench.run", "setting", name, [*known, "check", "measure"])
        try:
            found[name] = known[name](str(value))
        except ValueError as error:
            raise UsageError(refusal("attnbench.run", name, value, "cannot be used", str(error))) from None
    return found


def _sample(
    functions: Mapping[str, Callable[[], Any]], device: str, reset: Callable[[], None] | None, plan: dict[str, Any]
) -> tuple[GroupTiming, list[float]]:
    """Call each once (it may compile), then sample; also the seconds of the first calls."""
    from attnbench.measure.plan import Plan
    from attnbench.measure.sampling import sample
    from attnbench.measure.stage import synchronize
    from attnbench.measure.subject import Subject

    wanted = Plan(**plan)
    for name, fn in functions.items():
        if not callable(fn):
            raise UsageError(refusal("bench", name, repr(fn), "cannot be called", "a function of no arguments"))
    place, first_calls = _place(device), []
    with _current(place):
        for fn in functions.values():
            if reset:
                reset()
            started = time.perf_counter()
            fn()
            synchronize(place)
            first_calls.append(time.perf_counter() - started)
        subjects = [Subject(name=name, call=fn, reset=reset) for name, fn in functions.items()]
        return sample(subjects, device=place, plan=wanted), first_calls


def _place(device: str) -> Device:
    """The device a function is timed on: of several GPUs the current one, where none is named."""
    from attnbench.machine.devices import resolve

    place = resolve(device)
    if not place.on_gpu or ":" in device:
        return place
    import torch

    return replace(place, index=torch.cuda.current_device())


def _current(place: Device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, as it is while functions are sampled."""
    if not place.on_gpu:
        return nullcontext()
    import torch

    return torch.cuda.device(str(place))


def _timing(group: GroupTiming, index: int, first_calls: Sequence[float]) -> Timing:
    from attnbench.measure.times import to_time

    sampled: Sampled = group.timings[index]
    first_ms = 1e3 * first_calls[index]
    timers = {name: to_time(timings[index], None, first_ms) for name, timings in group.by_timer.items()}
    return Timing(sampled.name, to_time(sampled, None, first_ms), sampled.kernels, sampled.kernel_ms, group.power,
                  sampled.notes, timers or None)


def _figures(timing: Timing) -> str:
    """Median and the longer arm of its interval, with the digits that it bears."""
    from attnbench.presentation.figures import margin, measured, time_half, unit_for

    unit, half = unit_for([timing.median_ms]), time_half(timing.time)
    value, arm = timing.median_ms * unit.per_ms, None if half is None else half * unit.per_ms
    return f"{measured(value, arm)} {margin(value, arm)} {unit.name}".replace("  ", " ")


def _circumstances(timing: Timing) -> str:
    clock = f", {timing.sm_mhz:.0f} MHz" if timing.sm_mhz else ""
    return f"{timing.time.timer}, {timing.time.l2} cache, {timing.time.regime}{clock}, n={timing.time.num_samples}"


def _speedup(found: Speedup) -> str:
    from attnbench.presentation.figures import margin, measured, speedup_half

    half = speedup_half(found)
    return f"{measured(found.ratio, half)}x {margin(found.ratio, half)} {found.verdict}".replace("  ", " ")
