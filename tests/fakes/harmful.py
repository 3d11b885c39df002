"""Backends for the CPU that are correct but harm others in their process (give this file to --backends)."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
from misbehaving import Misbehaving, die, log

from attnbench.backends.base import Budget, Config, RelL1

threads: list[threading.Thread] = []
opened = threading.Event()


class HarmfulBase(Misbehaving):
    """Honest; a subclass does one thing more."""


class LeavesAThread(HarmfulBase):
    """Leaves a thread that crashes while `opened-after-it` is opened."""

    name = "leaves-a-thread"

    def set_up(self):
        threads.append(threading.Thread(target=self.crash, daemon=True))
        threads[-1].start()

    def crash(self):
        opened.wait()
        die()


class OpenedAfterIt(HarmfulBase):
    name = "opened-after-it"

    def set_up(self):
        opened.set()
        if threads:
            time.sleep(30)


class ZeroesKInItsPhases(HarmfulBase):
    name = "zeroes-k-in-its-phases"

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        launch.phases = {"plan": lambda: inputs.k.zero_()}
        return launch


class ZeroesKWhenItIsClosed(HarmfulBase):
    name = "zeroes-k-when-it-is-closed"
    inputs: Any = None

    def launch(self, case, inputs):
        self.inputs = inputs
        return super().launch(case, inputs)

    def tear_down(self):
        self.inputs.k.zero_()


class WritesPastATensor(HarmfulBase):
    """What lies behind its tensor is the value that others scale their result by."""

    name = "writes-past-a-tensor"

    def set_up(self):
        ctypes.c_float.from_address(heap.ctypes.data + 4 * 8).value = 1.5


heap = np.ones(9, np.float32)
"Eight numbers of `writes-past-a-tensor`, and one of `reads-its-own`."


class ReadsItsOwn(HarmfulBase):
    """Right, as long as nobody writes to its memory."""

    name = "reads-its-own"

    def attend(self, *args):
        return super().attend(*args) * float(heap[8])


class KilledOnce(HarmfulBase):
    """Something outside kills the process that it is in, once."""

    name = "killed-once"

    def attend(self, *args):
        from pathlib import Path

        if "killed" not in Path(os.environ["ATTNBENCH_TEST_LOG"]).read_text():
            log("killed 0")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().attend(*args)


# ── what no record can hold ────────────────────────────────────────────────────────────────────────


class WithABudget(HarmfulBase):
    """The subclass says which."""

    factor: Any = 2.0

    def budget(self, case):
        return Budget(factor=self.factor)


class InfiniteBudget(WithABudget):
    name, factor = "infinite-budget", float("inf")


class NegativeBudget(WithABudget):
    name, factor = "negative-budget", -1.0


class BudgetThatIsNoNumber(WithABudget):
    name, factor = "budget-that-is-no-number", float("nan")


class ExactOnOutliers(HarmfulBase):
    """Says so, and is as exact as any."""

    name = "exact-on-outliers"

    def budget(self, case):
        return Budget(by_input={"outliers": RelL1(0.0, 0.0)})


class ConfigIsANumber(HarmfulBase):
    name = "config-is-a-number"

    def __init__(self, config=None):
        super().__init__(Config(3))


class VersionIsANumber(HarmfulBase):
    name = "version-is-a-number"

    def version(self):
        return 2.1


class WithLaunch(HarmfulBase):
    """The subclass says what its launch has."""

    given: dict[str, Any] = {}  # noqa: RUF012

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        for name, value in self.given.items():
            setattr(launch, name, value)
        return launch


class NotesAreOneText(WithLaunch):
    name, given = "notes-are-one-text", {"notes": "a kernel"}


class NotesAreNumbers(WithLaunch):
    name, given = "notes-are-numbers", {"notes": (1, None)}


class HalfAFlop(WithLaunch):
    name, given = "half-a-flop", {"executed_flops": 0.5}


class MinusOneFlop(WithLaunch):
    name, given = "minus-one-flop", {"executed_flops": -1}


class FlopsOfNumpy(WithLaunch):
    name, given = "flops-of-numpy", {"executed_flops": np.int64(1000)}


class PhasesAreAList(WithLaunch):
    name, given = "phases-are-a-list", {"phases": [1]}


class PhaseNamedByANumber(WithLaunch):
    name, given = "phase-named-by-a-number", {"phases": {7: lambda: None}}


class HalfASurrogate(WithLaunch):
    name, given = "half-a-surrogate", {"notes": ("caf\udce9", "\ud83d")}


class RaisesHalfASurrogate(HarmfulBase):
    name = "raises-half-a-surrogate"

    def set_up(self):
        raise RuntimeError(os.fsdecode(b"caf\xe9.so: cannot open"))


class WordlessError(Exception):
    def __str__(self):
        raise ValueError("no words")


class RaisesWithoutWords(HarmfulBase):
    name = "raises-without-words"

    def set_up(self):
        raise WordlessError


class LosesThePipes(HarmfulBase):
    """What the worker says goes nowhere, and it hears nothing any more: it ends in order, as if it were done."""

    name = "loses-the-pipes"

    def set_up(self):
        null = os.open(os.devnull, os.O_RDWR)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (numbers)
            with suppress(OSError):
                if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):  # noqa: PTH115
                    os.dup2(null, int(name))
