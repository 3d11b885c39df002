"""Interruptions of a server: garbage collections, kept short and timed, compilations, and unusually long launches."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attnbench.loadtest.ledger import Ledger

PAUSE_MS, PAUSE_TIMES = 10.0, 5.0
"A launch is reported if it takes at least this long, and this many times as long as others."


class Collections:
    """Durations of garbage collections."""

    def __init__(self) -> None:
        """Start empty."""
        self.longest_ms = 0.0
        self._began = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """See `gc.callbacks`."""
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.longest_ms = max(self.longest_ms, 1e3 * (time.perf_counter() - self._began))


@contextmanager
def old_objects_left_alone() -> Iterator[Collections]:
    """Exempt existing objects from garbage collection, as servers do once they are warm, and time later collections.

    With torch loaded, a full collection takes a tenth of a second in which nothing is answered.
    """
    already = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    timed = Collections()
    gc.callbacks.append(timed)
    try:
        yield timed
    finally:
        gc.callbacks.remove(timed)
        if not already:  # objects frozen by others stay frozen
            gc.unfreeze()


@contextmanager
def first_uses() -> Iterator[dict[str, float]]:
    """Record the Triton kernels compiled or loaded meanwhile: their names, each with the milliseconds it took."""
    found: dict[str, float] = {}
    try:
        from triton import knobs
    except ImportError:  # nothing can be compiled
        yield found
        return
    before = knobs.compilation.listener

    def listen(*, src: Any, times: Any, **others: Any) -> None:
        name = getattr(src, "name", "unknown")
        found[name] = found.get(name, 0.0) + times.total / 1e3
        if before is not None:
            before(src=src, times=times, **others)

    knobs.compilation.listener = listen
    try:
        yield found
    finally:
        knobs.compilation.listener = before


def pauses(ledger: Ledger, collected_ms: float, first_used_ms: Mapping[str, float]) -> tuple[str, ...]:
    """Describe what interrupted a load: kernels used for the first time, a launch far longer than others.

    Args:
        ledger: of a load.
        collected_ms: duration of the longest collection during the load.
        first_used_ms: see `first_uses`.
    """
    words = ", ".join(f"{name} ({ms:.3g} ms)" for name, ms in sorted(first_used_ms.items(), key=lambda one: -one[1]))
    found = (f"kernels compiled or loaded during the load, not in its warm-up: {words}",) if words else ()
    return (*found, *_longest(ledger, collected_ms))


def _longest(ledger: Ledger, collected_ms: float) -> tuple[str, ...]:
    """Describe a launch that took the host far longer than others, and whether garbage collection may be the cause."""
    taken = [batch.host_ms for batch in ledger.batches]
    usual, longest = statistics.median(taken or [0.0]), max(taken, default=0.0)
    if longest < max(PAUSE_MS, PAUSE_TIMES * usual):
        return ()
    return (
        f"one launch took the host {longest:.3g} ms, half of them no more than {usual:.3g} ms; the longest garbage "
        f"collection took {collected_ms:.3g} ms",
    )
