"""One rank of `machine.links`: ``python -m attnbench.machine.link_rank ANSWER RANK DEVICES STORE SIZES``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnbench.machine.child import die_with_parent, reply
from attnbench.machine.device import Device
from attnbench.machine.links import COPY, MIB, OPERATIONS, SAMPLES, STEP, WARMUP

ON_ONE_HOST = {
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    # Multicast through the NVSwitch is shared by all its users: a fault in it takes a host's GPUs out of service.
    "NCCL_NVLS_ENABLE": "0",
}
"""Variables of the libraries, unless they are set."""


class Rank:
    """One process of several."""

    def __init__(self, rank: int, devices: list[Device], store: str) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank, self.devices = torch, dist, rank, devices
        self.device, self.count = devices[rank], len(devices)
        if self.device.on_gpu:
            torch.cuda.set_device(str(self.device))
        backend = "nccl" if self.device.on_gpu else "gloo"
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=self.count)
        self.token = torch.ones(1, device=str(self.device))

    def measured(self, sizes_mb: list[float], step: Path) -> dict[str, list[float]]:
        """Return the milliseconds of each sample, by operation and size; the first rank writes to `step` which is next."""
        found = {}
        for operation in OPERATIONS:
            if operation == COPY and not self.device.on_gpu:
                continue  # a copy within one memory does not use a link
            for size in sizes_mb:
                if self.rank == 0:
                    step.write_text(f"{operation} of {size:g} MiB")
                call = self._call(operation, max(1, int(size * MIB / 4)))
                times = [self._sample(call) for _ in range(WARMUP + SAMPLES)]
                found[f"{operation} {size}"] = times[WARMUP:]
        return found

    def _call(self, operation: str, length: int) -> Callable[[], Any]:
        """Return the call to time: `length` four-byte numbers to each receiving rank."""
        torch, dist, count = self.torch, self.dist, self.count

        def tensor(parts: int = 1, device: Device = self.device) -> Any:
            return torch.ones(parts * length, device=str(device))

        if operation == COPY:
            if self.rank:
                return lambda: None
            source, target = tensor(), tensor(device=self.devices[1])
            return lambda: target.copy_(source)
        if operation == "exchange":
            return self._exchange(tensor(), tensor())
        if operation == "all-to-all":
            source, target = tensor(count), tensor(count)
            return lambda: dist.all_to_all_single(target, source)
        source, target = tensor(), tensor(count)
        return lambda: dist.all_gather_into_tensor(target, source)

    def _exchange(self, source: Any, target: Any) -> Callable[[], Any]:
        """Ranks 0 and 1, 2 and 3 … send to each other at once; an odd last rank does nothing."""
        dist, peer = self.dist, self.rank ^ 1
        if peer >= self.count:
            return lambda: None

        def both() -> None:
            ops = [dist.P2POp(dist.isend, source, peer), dist.P2POp(dist.irecv, target, peer)]
            for request in dist.batch_isend_irecv(ops):
                request.wait()

        return both

    def _sample(self, call: Callable[[], Any]) -> float:
        torch = self.torch
        self.dist.all_reduce(self.token)  # the barrier: on a GPU it precedes the first event in the stream
        if not self.device.on_gpu:
            began = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - began)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))


def main(words: list[str]) -> None:
    """Join the other ranks, measure, answer."""
    die_with_parent()
    answer, rank, names, store, sizes = words
    for name, value in ON_ONE_HOST.items():
        os.environ.setdefault(name, value)
    devices = [Device.parse(name) for name in names.split(",")]
    mine = Rank(int(rank), devices, store)
    found = mine.measured([float(size) for size in sizes.split(",")], Path(store).with_name(STEP))
    mine.dist.barrier()
    reply(answer, found)


if __name__ == "__main__":
    main(sys.argv[1:])
