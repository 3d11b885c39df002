"""Backends for the CPU (for --backends) that are unusual but honest: each call does all of its work."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cheating import Cheating, attend, attend_by_numpy


class CompilesLate(Cheating):
    """Compiles in its third call, for as long as some forty calls."""

    name, calls = "compiles-late", 0

    def work(self):
        self.calls += 1
        for _ in range(40 if self.calls == 3 else 0):
            super().work()
        return super().work()


class TunesItself(Cheating):
    """Tries three ways in its first calls, each several times, and keeps one."""

    name, calls = "tunes-itself", 0

    def work(self):
        self.calls += 1
        if self.calls <= 9:
            for way in (attend, attend_by_numpy):
                way(*self.data.values(), self.hides)
        return super().work()


class KeepsItsMemory(Cheating):
    """Scores and output are always written to the same memory, and the output is part of a larger one."""

    name = "keeps-its-memory"

    def prepare(self):
        import torch

        q, k, _ = self.data.values()
        self.scores = torch.empty(*q.shape[:3], k.shape[2], dtype=q.dtype)
        self.padded = torch.empty(*q.shape[:2], q.shape[2] + 7, 2 * q.shape[3], dtype=q.dtype)

    def work(self):
        import torch

        q, k, v = self.data.values()
        with torch.no_grad():
            torch.matmul(q, k.mT, out=self.scores)
            self.scores.mul_(q.shape[-1] ** -0.5).masked_fill_(self.hides, -torch.inf)
            out = self.padded[:, :, 3 : 3 + q.shape[2], ::2]
            return out.copy_(torch.softmax(self.scores, -1) @ v)


class ReplaysSteps(Cheating):
    """Steps that were recorded in the first call, over tensors that stay: as a captured graph."""

    name, steps = "replays-steps", None

    def record(self):
        import torch

        q, k, v = self.data.values()
        scores, out = torch.empty(*q.shape[:3], k.shape[2], dtype=q.dtype), torch.empty_like(q)
        self.steps = [
            lambda: torch.matmul(q, k.mT, out=scores),
            lambda: scores.mul_(q.shape[-1] ** -0.5).masked_fill_(self.hides, -torch.inf),
            lambda: torch.matmul(torch.softmax(scores, -1), v, out=out),
        ]
        return out

    def forward(self):
        import torch

        with torch.no_grad():
            if self.steps is None:
                self.out = self.record()
            for step in self.steps:
                step()


class TakesMuchMemory(Cheating):
    """A large temporary in each call, of which only a part is touched."""

    name = "takes-much-memory"

    def work(self):
        import torch

        out = super().work()
        temporary = torch.empty(2**26, dtype=torch.uint8)
        temporary[:: 2**14].zero_()
        return out + temporary[0].to(out.dtype)


class WaitsForItsPool(Cheating):
    """A head a thread, all waited for."""

    name = "waits-for-its-pool"

    def prepare(self):
        self.pool = ThreadPoolExecutor(2)

    def work(self):
        import torch

        heads = zip(*(x.unbind(1) for x in self.data.values()), strict=True)
        return torch.stack(list(self.pool.map(lambda head: attend(*head, self.hides), heads)), dim=1)


class CollectsGarbage(Cheating):
    """Leaves circles, and collects them itself now and then; finalisers run when they like."""

    name, calls = "collects-garbage", 0

    def work(self):
        self.calls += 1
        circle: list[object] = [bytearray(10_000)]
        circle.append(circle)
        if self.calls % 10 == 0:
            gc.collect()
        return super().work()


class DrawsNumbers(Cheating):
    """Numbers of a generator of its own, that cancel."""

    name = "draws-numbers"

    def prepare(self):
        import torch

        self.lots = torch.Generator().manual_seed(7)

    def work(self):
        import torch

        signs = torch.randint(0, 2, self.data["q"].shape[-1:], generator=self.lots) * 2.0 - 1.0
        q, k, v = self.data.values()
        return self.attend(q * signs, k * signs, v, self.hides)


class AllocatesAnew(Cheating):
    """New tensors for its inputs at each reload, and a contiguous output of the workload's layout."""

    name = "allocates-anew"

    def reload(self, inputs):
        import torch

        self.data = {name: x.clone(memory_format=torch.contiguous_format) for name, x in self.views(inputs).items()}

    def work(self):
        return super().work().transpose(1, 2).contiguous().transpose(1, 2)
