"""Settings of the process that a backend may change for all others in it.

The counterpart of `torch_settings`: limits, priorities, streams, signals, random generators, and the
functions that the harness and other backends call.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enumerations of it, which takes long
import gc
import locale
import os
import random
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from attnbench.check.functions import functions
from attnbench.check.setting import ABSENT, Setting
from attnbench.check.streams import streams

ENVIRONMENT = "environment variables"
SEARCH_PATH = "module search path"

OF_TORCH = frozenset({"TORCHINDUCTOR_CACHE_DIR", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "TRITON_CACHE_DIR"})
"""Set by torch's compiler for its own use whenever it runs."""
RECURSION = sys.getrecursionlimit()
"""Python's recursion limit; torch's compiler raises it, which is harmless."""

LIMITS = tuple(sorted(name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"))
SIGNALS = {one.name: int(one) for one in signal.Signals if one not in (signal.SIGKILL, signal.SIGSTOP)}
TOOLS = 6
"""Number of tool ids of `sys.monitoring`."""
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


@cache
def process_settings() -> tuple[Setting, ...]:
    """Return all of them, limits first: the others need files and memory."""
    return (
        *(
            Setting(
                name,
                partial(resource.getrlimit, getattr(resource, name)),
                partial(resource.setrlimit, getattr(resource, name)),
            )
            for name in LIMITS
        ),
        *streams(),
        Setting("working folder", _folder, os.chdir, shown=False),
        Setting(SEARCH_PATH, lambda: _Listed.of(sys.path, _only_appended), _put_list(lambda: sys.path), shown=False),
        Setting(ENVIRONMENT, _environment, _set_environment, which=_names),
        Setting("umask", _umask, os.umask),
        Setting("locale", lambda: locale.setlocale(locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)),
        *_scheduling(),
        *_signals(),
        *_interpreter(),
        *_random(),
        Setting("context of decimal numbers", _decimal, _set_decimal, shown=False),
        *functions(),
    )


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  (a Path costs ten times as much)
    except OSError:  # it was removed
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """A list that libraries append to on import; such additions are harmless."""

    values: tuple[Any, ...]
    modules: int
    harmless: Callable[[tuple[Any, ...], tuple[Any, ...]], bool]

    @classmethod
    def of(cls, values: Sequence[Any], harmless: Callable[[tuple[Any, ...], tuple[Any, ...]], bool]) -> _Listed:
        return cls(tuple(values), len(sys.modules), harmless)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Listed):
            return NotImplemented
        return self.values == other.values or (
            self.modules != other.modules and self.harmless(self.values, other.values)
        )

    def __hash__(self) -> int:
        return hash(self.values)


def _only_appended(then: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Return whether folders were only appended: those hide no module."""
    return now[: len(then)] == then


def _only_quieter(then: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Return whether the only new filters are ones that never raise."""
    return set(then) <= set(now) and not any(one[0] == "error" for one in now if one not in then)


def _put_list(owner: Callable[[], list[Any]]) -> Callable[[_Listed], None]:
    def put(then: _Listed) -> None:
        owner()[:] = then.values

    return put


def _environment() -> dict[str, str]:
    found = dict(os.environ)
    for name in OF_TORCH:
        found.pop(name, None)
    return found


def _fill(owner: Callable[[], list[Any]]) -> Callable[[Any], None]:
    """Replace the contents of a list in place, because others hold the same list."""

    def fill(values: Any) -> None:
        owner()[:] = values

    return fill


def _set_environment(then: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(then) - OF_TORCH:
        del os.environ[name]
    for name, value in then.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _names(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Name the entries that differ; without values, which may be secrets or paths."""
    differing = sorted(str(name) for name in {*then, *now} if then.get(name) != now.get(name))
    return ", ".join(differing[:4]) + (f" and {len(differing) - 4} more" if len(differing) > 4 else "")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _scheduling() -> tuple[Setting, ...]:
    niceness = Setting(
        "niceness", partial(os.getpriority, os.PRIO_PROCESS, 0), partial(os.setpriority, os.PRIO_PROCESS, 0)
    )
    if not hasattr(os, "sched_getaffinity"):
        return (niceness,)
    return (
        niceness,
        Setting(
            "scheduler",
            lambda: (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
            lambda value: os.sched_setscheduler(0, value[0], os.sched_param(value[1])),
        ),
        Setting("CPU affinity", lambda: os.sched_getaffinity(0), _set_affinity, shown=False),
    )


def _set_affinity(cores: set[int]) -> None:
    """Set it for every thread of the process: threads started meanwhile have inherited the change."""
    for thread in threading.enumerate():
        if thread.native_id is not None:
            os.sched_setaffinity(thread.native_id, cores)
    for name in os.listdir("/proc/self/task"):  # noqa: PTH208  (threads of libraries)
        os.sched_setaffinity(int(name), cores)


def _signals() -> tuple[Setting, ...]:
    return (
        Setting(
            "signal handlers",
            lambda: dict(zip(SIGNALS, map(_signal.getsignal, SIGNALS.values()), strict=True)),
            _set_handlers,
            which=_names,
        ),
        Setting(
            "signal mask",
            lambda: frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            partial(signal.pthread_sigmask, signal.SIG_SETMASK),
            shown=False,
        ),
        Setting(
            "interval timer",
            lambda: tuple(signal.getitimer(which) != (0.0, 0.0) for which in TIMERS),
            _stop_timers,
            shown=False,
        ),
    )


def _set_handlers(then: Mapping[str, Any]) -> None:
    for name, handler in then.items():
        number = SIGNALS[name]
        if handler is not None and _signal.getsignal(number) != handler:
            signal.signal(number, handler)


def _stop_timers(then: tuple[bool, ...]) -> None:
    for which, ran in zip(TIMERS, then, strict=True):
        if not ran:
            signal.setitimer(which, 0)


def _interpreter() -> tuple[Setting, ...]:
    def set_collecting(on: bool) -> None:
        (gc.enable if on else gc.disable)()

    def set_filters(then: _Listed) -> None:
        warnings.filters[:] = then.values  # type: ignore[index]  # a list, which typeshed calls a sequence
        warnings._filters_mutated()  # type: ignore[attr-defined]  # not public; without it the cache is stale

    def hook(owner: Any, name: str) -> Setting:
        return Setting(
            f"{owner.__name__}.{name}",
            lambda: getattr(owner, name),
            lambda value: setattr(owner, name, value),
            shown=False,
        )

    return (
        Setting("recursion limit", lambda: min(sys.getrecursionlimit(), RECURSION), sys.setrecursionlimit),
        Setting("thread switch interval", sys.getswitchinterval, sys.setswitchinterval),
        Setting("longest number as text", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
        Setting("trace function", sys.gettrace, sys.settrace, shown=False),
        Setting("profile function", sys.getprofile, sys.setprofile, shown=False),
        Setting("trace function of new threads", threading.gettrace, threading.settrace, shown=False),
        Setting("profile function of new threads", threading.getprofile, threading.setprofile, shown=False),
        Setting("monitoring tools", _tools, _free_tools),
        Setting("garbage collection", gc.isenabled, set_collecting),
        Setting("thresholds of the garbage collection", gc.get_threshold, lambda then: gc.set_threshold(*then)),
        Setting("debugging of the garbage collection", gc.get_debug, gc.set_debug),
        Setting(
            "callbacks of the garbage collection", lambda: tuple(gc.callbacks), _fill(lambda: gc.callbacks), shown=False
        ),
        Setting("warning filters", lambda: _Listed.of(warnings.filters, _only_quieter), set_filters, shown=False),
        Setting("module finders", lambda: tuple(sys.meta_path), _fill(lambda: sys.meta_path), shown=False),
        hook(warnings, "showwarning"),
        hook(sys, "excepthook"),
        hook(sys, "unraisablehook"),
        hook(threading, "excepthook"),
    )


def _tools() -> tuple[str | None, ...]:
    """Return the names of the tools registered with `sys.monitoring` (Python 3.12), by id."""
    monitoring: Any = getattr(sys, "monitoring", None)
    return tuple(map(monitoring.get_tool, range(TOOLS))) if monitoring else ()


def _free_tools(then: tuple[str | None, ...]) -> None:
    monitoring: Any = getattr(sys, "monitoring", None)
    for number, (before, now) in enumerate(zip(then, _tools(), strict=True)):
        if before is None and now is not None:
            monitoring.set_events(number, 0)
            monitoring.free_tool_id(number)


DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimal() -> Any:
    module: Any = sys.modules.get("decimal")
    return ABSENT if module is None else tuple(getattr(module.getcontext(), name) for name in DECIMAL)


def _set_decimal(then: tuple[Any, ...]) -> None:
    context = sys.modules["decimal"].getcontext()
    for name, value in zip(DECIMAL, then, strict=True):
        setattr(context, name, value)


def _random() -> tuple[Setting, ...]:
    def numpy(name: str) -> Callable[..., Any] | None:
        module: Any = sys.modules.get("numpy.random" if "state" in name else "numpy")
        return getattr(module, name, None)

    def state() -> Any:
        get = numpy("get_state")
        if get is None:
            return ABSENT
        kind, keys, *rest = get()
        return kind, keys.tobytes(), *rest

    def set_state(then: Any) -> None:
        import numpy as np

        np.random.set_state((then[0], np.frombuffer(then[1], np.uint32), *then[2:]))

    def errors() -> Any:
        get = numpy("geterr")
        return ABSENT if get is None else get()

    def set_errors(then: Any) -> None:
        import numpy as np

        np.seterr(**then)

    return (
        Setting(
            "state of Python's random generator (numbers were drawn)", random.getstate, random.setstate, shown=False
        ),
        Setting("state of NumPy's random generator (numbers were drawn)", state, set_state, shown=False),
        Setting("error handling of NumPy", errors, set_errors, shown=False),
    )
