"""What stops a server for a moment: garbage collections, kept short and timed, and launches far longer than others."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from attnbench.loadtest.ledger import Ledger

PAUSE_MS, PAUSE_TIMES = 10.0, 5.0
"A launch that takes at least so long, and so many times as long as others, is said."


class Collections:
    """What garbage collections took."""

    def __init__(self) -> None:
        """None yet."""
        self.longest_ms = 0.0
        self._began = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """As of `gc.callbacks`."""
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.longest_ms = max(self.longest_ms, 1e3 * (time.perf_counter() - self._began))


@contextmanager
def old_objects_left_alone() -> Iterator[Collections]:
    """Let Python's garbage collector pass over what is there already, as servers do once they are warm.

    Beside torch a full collection takes a tenth of a second, in which nothing is answered.  Others are timed.
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
        if not already:  # what others have frozen stays so
            gc.unfreeze()


def pauses(ledger: Ledger, collected_ms: float) -> tuple[str, ...]:
    """A launch that took the host far longer than others do, and whether it may have been a garbage collection.

    Args:
        ledger: of a load.
        collected_ms: the longest collection meanwhile.
    """
    taken = [batch.host_ms for batch in ledger.batches]
    usual, longest = statistics.median(taken or [0.0]), max(taken, default=0.0)
    if longest < max(PAUSE_MS, PAUSE_TIMES * usual):
        return ()
    return (
        f"one launch took the host {longest:.3g} ms, half of them no more than {usual:.3g} ms; the longest garbage "
        f"collection took {collected_ms:.3g} ms",
    )
