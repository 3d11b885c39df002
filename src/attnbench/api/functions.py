"""Time one function, or several alternately."""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.api.answers import Comparison, Timing
from attnbench.errors import UsageError, refusal, unknown
from attnbench.record import Speedup

if TYPE_CHECKING:
    from attnbench.machine.device import Device
    from attnbench.measure.sampling import GroupTiming
    from attnbench.measure.sampling import Timing as Sampled


def bench(
    fn: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    device: str = "auto",
    reset: Callable[[], None] | None = None,
    timer: str = "auto",
    l2: str = "auto",
    regime: str = "burst",
    warmup: int | None = None,
    iterations: int | None = None,
    rel_ci: float = 0.01,
    max_seconds: float = 1.0,
) -> Timing:
    """Time one function.

    Args:
        fn: function to time; on a GPU, the work it launches on the current stream.
        args: arguments of `fn`; for keywords wrap it, ``bench(lambda: fn(x, scale=2))``.
        name: printed name; by default the function's own.
        device: auto (the current GPU if there is one, else the CPU), cpu, cuda or cuda:N.
        reset: called before each call, untimed.
        timer: auto, all, or a name of `attnbench list timers`.
        l2: auto (cold on a GPU), cold or warm.
        regime: burst or sustained.
        warmup: calls before the first sample; by default enough for the clocks to settle.
        iterations: number of samples; by default until `rel_ci` or `max_seconds`.
        rel_ci: stop when the 95 % interval of the median is within this share of it.
        max_seconds: stop after this much sampling.

    Raises:
        UsageError: an argument is wrong.
        Unavailable: the timer or device is not available.
    """
    name = name or _name_of(fn)
    plan = {
        "timer": timer,
        "l2": l2,
        "regime": regime,
        "warmup": warmup,
        "iterations": iterations,
        "rel_ci": rel_ci,
        "max_seconds": max_seconds,
    }
    group, seconds = _sample({name: _ready("bench", name, fn, args)}, device, reset, plan)
    return _timing(group, 0, seconds)


def compare(
    functions: Mapping[str, Callable[[], Any]] | Sequence[Callable[[], Any]] | Callable[[], Any],
    *more: Callable[[], Any],
    baseline: str | None = None,
    device: str = "auto",
    timer: str = "auto",
    l2: str = "auto",
    regime: str = "burst",
    warmup: int | None = None,
    iterations: int | None = None,
    rel_ci: float = 0.01,
    max_seconds: float = 2.0,
) -> Comparison:
    """Time several functions alternately, round by round, and compare them within rounds.

    Args:
        functions: by name, or a list of them, or the first of several; called without arguments.  Lambdas are
            called fn, fn-2 …, objects after their class.
        more: the others, where `functions` is the first.
        baseline: name to compare with; the first by default.
        device: as for `bench`, as are the others; `rel_ci` is of the ratios, `max_seconds` of all together.

    Raises:
        UsageError: fewer than two functions, an unknown baseline, or another wrong argument.
        Unavailable: the timer or device is not available.
    """
    from attnbench.measure.timer import all_timers
    from attnbench.stats.ratio import paired_ratio
    from attnbench.stats.summary import is_wild

    named = _by_name(functions, more)
    first = baseline or next(iter(named))
    if first not in named:
        raise unknown("compare", "baseline", first, named)
    ordered = {first: named[first], **named}  # the sampler compares with the first
    plan = {
        "timer": timer,
        "l2": l2,
        "regime": regime,
        "warmup": warmup,
        "iterations": iterations,
        "rel_ci": rel_ci,
        "max_seconds": max_seconds,
    }
    group, seconds = _sample(ordered, device, None, plan)
    by_name = {timing.name: _timing(group, index, seconds) for index, timing in enumerate(group.timings)}
    tick = all_timers()[group.timings[0].timer].tick_ms
    rounds = {name: dict(zip(t.time.rounds, t.time.samples_ms, strict=True)) for name, t in by_name.items()}
    speedups = {}
    for name in named:
        if name != first:
            found = paired_ratio(rounds[first], rounds[name], tick=tick)
            wild = any(
                is_wild(by_name[one].median_ms, *(by_name[one].interval_ms or (None, None))) for one in (first, name)
            )
            speedups[name] = Speedup(
                baseline=first,
                ratio=found.ratio,
                ci_low=found.ci_low,
                ci_high=found.ci_high,
                verdict="unclear" if wild else found.verdict,
            )
    return Comparison({name: by_name[name] for name in named}, first, speedups)


def _by_name(functions: Any, more: Sequence[Any]) -> dict[str, Callable[[], Any]]:
    """Return the functions of `compare` by name, after checking that each can be timed."""
    right = 'compare(f, g), compare([f, g]) or compare({"f": f, "g": g})'
    if isinstance(functions, Mapping) and not more:
        if not all(isinstance(name, str) for name in functions):
            raise UsageError(refusal("compare", "functions", "dict", "does not name them by texts", right))
        named = dict(functions)
    else:
        several = [functions, *more] if more or not isinstance(functions, Sequence) else list(functions)
        named = {}
        for fn in several:
            if not callable(fn):
                _discard(fn)
                raise UsageError(
                    refusal(
                        "compare",
                        "functions",
                        type(fn).__name__,
                        "is not a function",
                        right,
                        'give arguments by compare({"f": lambda: f(x), "g": lambda: g(x)})',
                    )
                )
            name, count = _name_of(fn), 1 + sum(_name_of(other) == _name_of(fn) for other in named.values())
            named[name if count == 1 else f"{name}-{count}"] = fn
    if len(named) < 2:
        raise UsageError(refusal("compare", "functions", len(named), "are too few", f"two or more, {right}"))
    return {name: _ready("compare", name, fn, ()) for name, fn in named.items()}


def _name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    own = getattr(fn, "__name__", type(fn).__name__ if callable(fn) else "fn")
    return str(own).replace("<lambda>", "fn")


def _ready(who: str, name: str, fn: Any, args: Sequence[Any]) -> Callable[[], Any]:
    """Return a call without arguments that does its work when called.

    Raises:
        UsageError: it cannot be called, or a call returns unfinished work (a coroutine, a generator).
    """
    if not callable(fn):
        _discard(fn)
        shown = repr(fn) if len(repr(fn)) < LONGEST_REPR else type(fn).__name__
        raise UsageError(refusal(who, name, shown, "cannot be called", "a function", f"{who}(lambda: f(x))"))
    inner: Any = inspect.unwrap(fn)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    made = inner if inspect.isroutine(inner) else type(inner).__call__
    for kind, test in KINDS.items():
        if test(made):
            raise _lazy(who, name, kind)
    return functools.partial(fn, *args) if args else fn


LONGEST_REPR = 60
KINDS = {
    "an async generator": inspect.isasyncgenfunction,
    "a coroutine": inspect.iscoroutinefunction,
    "a generator": inspect.isgeneratorfunction,
}


def _check_result(who: str, name: str, result: Any) -> None:
    """Refuse a call that returns unfinished work."""
    lazy = {
        "an async generator": inspect.isasyncgen(result),
        "a generator": inspect.isgenerator(result),
        "a coroutine": inspect.iscoroutine(result),
        "a future": isinstance(result, concurrent.futures.Future),
        "an awaitable": inspect.isawaitable(result),
        "an iterator": isinstance(result, map | filter),
    }
    for kind, found in lazy.items():
        if found:
            _discard(result)
            raise _lazy(who, name, kind)


def _lazy(who: str, name: str, kind: str) -> UsageError:
    does = {
        "an async generator": "asyncio.run(g())",
        "coroutine": "asyncio.run(f())",
        "future": "f().result()",
        "awaitable": "asyncio.run(f())",
    }
    call = f"lambda: {does.get(kind) or does.get(kind.split()[-1]) or 'list(f())'}"
    words = f"{who}({call})" if who == "bench" else f'{who}({{"{name}": {call}, …}})'
    words += ", where g takes all that f yields" if kind == "an async generator" else ""
    wrong = "is the answer of a call, so the work itself would not be timed"
    return UsageError(refusal(who, name, kind, wrong, "a function that does its work in the call", words))


def _discard(thing: Any) -> None:
    """Close a coroutine that is never awaited: Python warns about it otherwise."""
    if inspect.iscoroutine(thing):
        thing.close()


def _sample(
    functions: Mapping[str, Callable[[], Any]], device: str, reset: Callable[[], None] | None, plan: dict[str, Any]
) -> tuple[GroupTiming, list[float]]:
    """Call each function once (it may compile), then sample; return also the seconds of the first calls."""
    from attnbench.measure.plan import Plan
    from attnbench.measure.sampling import sample
    from attnbench.measure.stage import synchronize
    from attnbench.measure.subject import Subject

    wanted = Plan(**plan)
    place, first_calls = _place(device), []
    with _current(place):
        for name, fn in functions.items():
            if reset:
                reset()
            started = time.perf_counter()
            result = fn()
            synchronize(place)
            first_calls.append(time.perf_counter() - started)
            _check_result("bench" if len(functions) == 1 else "compare", name, result)
            del result
        subjects = [Subject(name=name, call=fn, reset=reset) for name, fn in functions.items()]
        return sample(subjects, device=place, plan=wanted), first_calls


def _place(device: str) -> Device:
    """Return the device to time on: without a number, the current GPU."""
    from attnbench.machine.devices import resolve

    place = resolve(device)
    if not place.on_gpu or ":" in device:
        return place
    import torch

    return replace(place, index=torch.cuda.current_device())


def _current(place: Device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, as during sampling."""
    if not place.on_gpu:
        return nullcontext()
    import torch

    return torch.cuda.device(str(place))


def _timing(group: GroupTiming, index: int, first_calls: Sequence[float]) -> Timing:
    from attnbench.measure.times import to_time

    sampled: Sampled = group.timings[index]
    first_ms = 1e3 * first_calls[index]
    timers = {name: to_time(timings[index], None, first_ms) for name, timings in group.by_timer.items()}
    return Timing(
        sampled.name,
        to_time(sampled, None, first_ms),
        sampled.kernels,
        sampled.kernel_launches,
        sampled.kernel_ms,
        group.power,
        sampled.notes,
        timers or None,
    )
