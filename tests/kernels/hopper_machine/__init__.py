"""A machine that runs Gluon kernels for Hopper (sm_90) on the CPU: their values, and whether their parts get along.

Triton's interpreter has no Gluon.  Here the body of a kernel runs as Python on CPU tensors of the true types, its
partitions as coroutines that a seed interleaves; bulk copies land some time after they were issued.

    with machine_runs(module, "kernel", seed=1):
        launch(...)                                   # the project's own launcher: kernel[grid](...)
    run(kernel, (programs,), *arguments, NAME=...)    # or directly

A kernel's mistake is an error of `mistakes`:

    Deadlock       all partitions wait and nothing is in flight; says who waits for which phase of what
    Race           two accesses to shared memory, one a write, of which no barrier or wait puts one first: a tile
                   loaded, stored or added from while something else may be using it.  Found whatever the order
                   they happened to run in, as `schedule.Task` tells.
    MissingFence   a product or bulk store reads what threads wrote, and nobody fenced who knew of it
    TooEarly       a result or accumulator of an asynchronous product used before it is waited for
    BarrierMisuse  used before init, made twice, more arrivals or bytes than it takes
    Unfinished     products, stores or loads that nobody waits for, expected bytes that never come
    OutOfBounds    addresses outside a tensor's storage, indices outside a shape

Shared memory that nobody wrote is NaN.  Barriers count as on the card: `wait(parity)` passes when the phase of that
parity has ended (a fresh barrier passes parity 1), `expect` is an arrival too.  Products multiply with fp32 sums; fp32
operands lose 13 bits as in tf32.  Aggregates have their fields and methods; what Triton refuses of one is a Mistake.

Programs run one after the other, or with `at_once` some at a time, each started when there is room.  Then a Race is
also two accesses by pointers to global memory, one a write, that nothing orders: between programs that is an atomic
which releases and one which acquires there.  Volatile loads are relaxed.  Who looks for a counter to change, by
volatile loads or atomics of 0, waits until it does.

What it does not see: layouts (the compiler checks those), registers, time, bank conflicts, how threads of one
partition get along (it is one actor; barriers among its warps do nothing), and the order of bulk copies in global
memory.  Of one address written through pointers by several lanes the last one counts.  Integers past 32 bits are an
error, in tiles they wrap around; scalar floats have 64 bits, tiles their own type.  Inline assembly, and whatever
else has no stand-in, is `Unsupported`.
"""

import os

import pytest

if not os.environ.get("CI"):  # there a missing one is an error
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
