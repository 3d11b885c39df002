"""One rank of a `Team`: ``python -m attnbench.parallel.rank ANSWERS RANK DEVICES STORE``, with requests on stdin."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from attnbench.machine.cache import l2_bytes
from attnbench.machine.device import Device
from attnbench.machine.link_rank import ON_ONE_HOST
from attnbench.parallel.problem import Problem

LEAD_S = 1e-4
"Head start of the host over the device, in addition to the time that the last such call took to queue."
MOST_LEAD_S = 0.05
WORDS = 400


class Rank:
    """This process: its device, its group, and its open form."""

    def __init__(self, rank: int, devices: list[Device], store: str) -> None:
        import torch
        import torch.distributed as dist

        from attnbench.parallel.form import Group

        self.torch, self.dist, self.device = torch, dist, devices[rank]
        if self.device.on_gpu:
            torch.cuda.set_device(str(self.device))
        else:
            torch.set_num_threads(1)  # one core per rank, including the rank of the reference
        backend = "nccl" if self.device.on_gpu else "gloo"
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=len(devices))
        self.group = Group(rank, len(devices), torch.device(str(self.device)))
        self.token = torch.ones(1, device=self.group.device)
        self.queued_s: dict[str | None, float] = {}
        "how long the last call, or of each phase, took to queue"
        size = 2 * (l2_bytes(self.device) or 0) if self.device.on_gpu else 0
        self.flush = torch.empty(size, dtype=torch.uint8, device=self.group.device)

    def open(self, form: str, problem: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
        """Open a problem; return what the owner has to know about this rank's part."""
        from attnbench.parallel.form import form_of
        from attnbench.parallel.team import map_whole

        told = Problem.of(problem)
        self.whole = map_whole(places, told)
        self.form = form_of(form)(told, self.group)
        self.phases = dict(self.form.phases())
        return {
            "rows": self.form.rows(),
            "notes": self.form.notes(),
            "phases": list(self.phases),
            "sent_bytes": self.form.sent_bytes(),
        }

    def load(self) -> dict[str, Any]:
        """Copy this rank's rows of the inputs."""
        at = 0
        for start, end in self.form.rows():
            for name in ("q", "k", "v"):
                getattr(self.form, name)[at : at + end - start].copy_(self.whole[name][start:end])
            at += end - start
        self.form.taken()
        self.form.poison()
        self._wait()
        return {}

    def run(self, phase: str | None) -> dict[str, Any]:
        """Time one call, or a phase of it."""
        return {"ms": self._timed(self.form.run if phase is None else self.phases[phase], phase)}

    def collect(self) -> dict[str, Any]:
        """Write this rank's rows of the output, and overwrite its own."""
        at, out = 0, self.form.result()
        for start, end in self.form.rows():
            self.whole["out"][start:end].copy_(out[at : at + end - start])
            at += end - start
        self.form.poison()
        self._wait()
        return {}

    def close(self) -> dict[str, Any]:
        """Free the problem and its memory."""
        del self.form, self.whole, self.phases
        self.queued_s.clear()
        if self.device.on_gpu:
            self.torch.cuda.empty_cache()
        return {}

    def _timed(self, call: Callable[[], Any], phase: str | None) -> float:
        """Return milliseconds from the barrier on; on a GPU device time, with caches flushed before."""
        if not self.device.on_gpu:
            self.dist.all_reduce(self.token)
            began = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - began)
        cuda = self.torch.cuda
        self.flush.zero_()
        # The device is held until the host has queued the whole call; the barrier follows in the stream.
        khz = getattr(cuda.get_device_properties(self.group.device), "clock_rate", 0) or 2_000_000
        queued_s = self.queued_s.get(phase, max(self.queued_s.values(), default=0.0))
        cuda._sleep(int(min(MOST_LEAD_S, 1.2 * queued_s + LEAD_S) * 1e3 * khz))
        self.dist.all_reduce(self.token)
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        began = time.perf_counter()
        start.record()
        call()
        end.record()
        self.queued_s[phase] = time.perf_counter() - began
        cuda.synchronize()
        return float(start.elapsed_time(end))

    def _wait(self) -> None:
        if self.device.on_gpu:
            self.torch.cuda.synchronize()


def main(words: list[str]) -> None:
    """Join the other ranks, then serve requests until the pipe is closed."""
    answers, rank, names, store = words
    for name, value in ON_ONE_HOST.items():
        os.environ.setdefault(name, value)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    with contextlib.suppress(Exception):  # the first request meets it again, and reports it
        importlib.import_module("attnbench.parallel.form")  # and torch, which takes seconds, before there is a request
    with os.fdopen(int(answers), "w", encoding="utf-8") as out:
        mine: Rank | None = None
        while True:
            request = requests.get()
            try:
                mine = mine or Rank(int(rank), [Device.parse(name) for name in names.split(",")], store)
                answer = getattr(mine, request.pop("do"))(**request)
            except Exception as error:  # catches everything: the owner reports whatever a form raises
                answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:WORDS]}"}
            out.write(f"{json.dumps(answer)}\n")
            out.flush()


def _read(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass requests on; when the pipe is closed, end this process even if ranks wait for each other."""
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
