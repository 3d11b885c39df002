"""A simulator that runs Gluon kernels for Hopper (sm_90) on the CPU: it checks their values and their synchronisation.

Triton's interpreter has no Gluon.  Here the body of a kernel runs as Python on CPU tensors of the true types, and its
partitions are coroutines that a seed interleaves; bulk copies complete some time after they were issued, and bulk stores
are written some time after they have read shared memory.

    with machine_runs(module, "kernel", seed=1):
        launch(...)                                   # the project's own launcher: kernel[grid](...)
    run(kernel, (programs,), *arguments, NAME=...)    # or directly

A kernel's mistake raises an error of `mistakes`:

    Deadlock       all partitions wait and nothing is in flight; the message says who waits for which phase of what
    Race           two accesses to shared memory, one a write, that no barrier or wait orders: a tile is loaded, stored or
                   added from while something else may be using it.  Found in whatever order the two accesses ran
                   (`schedule.Task`)
    MissingFence   a product or bulk store reads what threads wrote, without a proxy fence in between
    TooEarly       a result or accumulator of an asynchronous product is used before it was waited for
    BarrierMisuse  an mbarrier is used before init, initialized twice, or gets more arrivals or bytes than it expects
    Unfinished     products, stores or loads that are never waited for, or expected bytes that never arrive
    OutOfBounds    addresses outside a tensor's storage, indices outside a shape

Shared memory that was never written is NaN.  mbarriers count as on the card: `wait(parity)` passes when the phase with that
parity has ended (a fresh barrier passes parity 1), and `expect` is an arrival too.  Products accumulate in fp32; fp32
operands lose 13 bits, as in tf32.  Aggregates have their fields and methods; what Triton refuses for one is a Mistake.

Programs run one after the other, or with `at_once` several at a time, each started when there is room.  Then a Race is
also two accesses by pointers to global memory, one a write, that nothing orders; between programs, an atomic release and an
atomic acquire of the same address order them.  Volatile loads are relaxed.  A task that polls a counter, by volatile loads
or atomics of 0, waits until the counter changes.

Not modelled: layouts (the compiler checks them), registers, time, bank conflicts, how the threads of one partition
synchronize (a partition is one actor, and barriers among its warps do nothing), and the order of bulk copies in global
memory.  If several lanes write one address through pointers, the last one counts.  Integers beyond 32 bits are an
error; in tiles they wrap around; scalar floats have 64 bits, tiles their own type.  Inline assembly, and everything
else without a stand-in, raises `Unsupported`.
"""

import os

import pytest

if not os.environ.get("CI"):  # in the package that is an error
    pytest.importorskip("greenlet", reason="greenlet is not installed: pip install greenlet")

from .machine import machine_runs, run
from .mistakes import (
    BarrierMisuse,
    Deadlock,
    MissingFence,
    Mistake,
    OutOfBounds,
    Race,
    TooEarly,
    Unfinished,
    Unsupported,
)

__all__ = [
    "BarrierMisuse",
    "Deadlock",
    "MissingFence",
    "Mistake",
    "OutOfBounds",
    "Race",
    "TooEarly",
    "Unfinished",
    "Unsupported",
    "machine_runs",
    "run",
]
