"""A backend with a space, for the CPU and the simulated card (a --backends file); tunable_timer.py has its times."""

from __future__ import annotations

import os

from misbehaving import Misbehaving, die, log

from attnbench.backends.base import Config

COUNT = 36
FAILS = {"c30": "too large", "c31": "too large", "c32": "crash", "c33": "wrong", "c34": "oom"}


class Tunable(Misbehaving):
    name, title, devices, compiles = "tunable", "A backend with a space", ("cpu", "cuda"), True

    def configs(self, case):
        if case is not None and case.headdim > 64:
            return []
        return [Config(f"c{index}", {"index": index, "tile": {"m": 64, "n": 32}}) for index in range(COUNT)]

    def attend(self, q, k, v, hidden, call):
        import torch

        short = self.config.short if self.config else "default"
        if call == 1 and "ATTNBENCH_TEST_LOG" in os.environ:
            log(short)
        fails = FAILS.get(short)
        if fails == "too large":
            raise RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 232448")
        if fails == "crash":
            die()
        if fails == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 200.00 GiB")
        out = super().attend(q, k, v, hidden, call)
        return out * 1.5 if fails == "wrong" else out


class NothingRuns(Misbehaving):
    name, title, devices = "nothing-runs", "Every configuration fails", ("cpu", "cuda")

    def configs(self, case):
        return [Config(f"c{index}") for index in range(5)]

    def attend(self, q, k, v, hidden, call):
        if self.config is None:
            raise RuntimeError("no default for this shape")
        raise RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 232448")
