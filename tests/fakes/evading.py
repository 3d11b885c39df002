"""Backends for the CPU (for --backends) that tell by some sign whether a call is looked at, or hide when they work.

As those of cheating.py their answers are right and their times are not those of the work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cheating import ByHash, Cheating, attend, attend_by_numpy

# ── when outputs are read ──────────────────────────────────────────────────────────────────────────


class WhenTaken(Cheating):
    """Its outputs are a mapping that computes when an item is taken."""

    name = "when-taken"

    def forward(self):
        self.out = None

    def launch(self, case, inputs):
        launch, owner = super().launch(case, inputs), self

        class Outputs(Mapping):
            def __getitem__(self, name):
                if owner.out is None:
                    owner.out = owner.work()
                return owner.out.transpose(1, 2)

            def __iter__(self):
                return iter(("out",))

            def __len__(self):
                return 1

        launch.outputs = Outputs
        return launch


class WhenAnOperatorReads(Cheating):
    """A dispatch mode, open from the first call on, computes when an operator is given the output."""

    name, mode = "when-an-operator-reads", None

    def forward(self):
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        owner = self

        class Lazy(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = owner.out
                if owner.due and func.overloadpacket is not torch.ops.aten.transpose:
                    taken = [one for one in args if isinstance(one, torch.Tensor)]
                    if any(one.untyped_storage().data_ptr() == out.untyped_storage().data_ptr() for one in taken):
                        owner.due = False
                        out.copy_(owner.work())
                return func(*args, **(kwargs or {}))

        if self.mode is None:
            self.out = torch.empty_like(self.data["q"])
            self.mode = Lazy()
            self.mode.__enter__()
        self.due = True

    def tear_down(self):
        self.mode.__exit__(None, None, None)


# ── when it is looked at ───────────────────────────────────────────────────────────────────────────


class LooksAtCallers(Cheating):
    """Works unless its callers are those of a sample that is recorded."""

    name = "looks-at-callers"

    def forward(self):
        frame, names = sys._getframe(), set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        if "_batch" not in names:
            super().forward()


class WrongWhenRecorded(Cheating):
    """As long as any, and right whenever its callers are not those of a sample that is recorded."""

    name = "wrong-when-recorded"

    def work(self):
        frame, names = sys._getframe(), set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        return super().work() * (1.5 if "_batch" in names else 1.0)


# ── for data that it knows ─────────────────────────────────────────────────────────────────────────


class RoughForKnownData(Cheating):
    """In bf16 for data that it has had some times."""

    name, times, last = "rough-for-known-data", 0, None

    def work(self):
        import torch

        key = self.data["v"][0, 0, 0].tolist()
        self.times = self.times + 1 if key == self.last else 0
        self.last = key
        if self.times < 3:
            return super().work()
        q, k, v = (x.to(torch.bfloat16) for x in self.data.values())
        return attend(q, k, v, self.hides).float()


# ── what it may do ─────────────────────────────────────────────────────────────────────────────────


class DecodesInOutputs(Cheating):
    """Each time that it is asked; it reads keys and values once, as a copy of them does."""

    name, attend = "decodes-in-outputs", staticmethod(attend_by_numpy)

    def forward(self):
        """Nothing."""

    def outputs(self):
        return self.work()


class APartInEach(Cheating):
    """A part of its rows in each call that is not timed, in none of them half as much as in the call."""

    name, attend = "a-part-in-each", staticmethod(attend_by_numpy)
    parts = (0.0, 0.18, 0.36, 0.54, 1.0)

    def prepare(self):
        import torch

        self.kept = torch.empty_like(self.data["q"])
        self.do(0)

    def do(self, part):
        q, k, v = self.data.values()
        begin, end = (int(share * q.shape[2]) for share in self.parts[part : part + 2])
        self.kept[:, :, begin:end] = self.attend(q[:, :, begin:end], k, v, self.hides[begin:end])

    def reload(self, inputs):
        super().reload(inputs)
        self.do(0)

    def reset(self):
        self.do(1)

    def outputs(self):
        self.do(2)
        return self.kept.clone()

    def forward(self):
        self.do(3)


class WideBudget(Cheating):
    """Zeros, which its budget accepts."""

    name = "wide-budget"

    def budget(self, case):
        from attnbench.backends.base import Budget

        return Budget(factor=1e9)

    def forward(self):
        import torch

        self.out = torch.zeros_like(self.data["q"])


class ReplacesTheClock(Cheating):
    """Its calls replace the clock by one that goes slow."""

    name, real = "replaces-the-clock", staticmethod(time.perf_counter_ns)

    def forward(self):
        real = self.real
        super().forward()
        time.perf_counter_ns = lambda: real() // 10


class ReplacesTheComparison(Cheating):
    """Zeros, and a comparison that says they are right."""

    name = "replaces-the-comparison"

    def forward(self):
        import torch

        from attnbench.check import examine
        from attnbench.check.compare import Comparison

        examine.compare = lambda found, truth, budget: Comparison({}, {})
        self.out = torch.zeros_like(self.data["q"])


class WidensTheLimits(ByHash):
    """Keeps its answers, and lets a call on new data take as long as it likes."""

    name = "widens-the-limits"

    def forward(self):
        from attnbench.check import looks

        looks.SLOWER["cpu"] = 1e9
        super().forward()
