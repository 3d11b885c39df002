"""Copies of pages between device and host memory.

On a GPU each direction has its own stream, and a step waits on the device, layer by layer.  Pages come in by one kernel
per layer, which reads pinned host memory in any order of pages.  They go out through a contiguous buffer on the device,
in runs of adjacent host pages, which the copy engine copies without a kernel.  In host memory all layers of a page are
adjacent, so a run is one copy whatever the number of layers.  On a CPU the same calls copy synchronously.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from attnbench.kernels.shared.card import takes_compiled
from attnbench.models.paged_cache.packing import send


class Ticket:
    """A transfer that has started."""

    def __init__(
        self,
        over: torch.cuda.Event | None = None,
        layers: Sequence[torch.cuda.Event] = (),
        device: torch.device | None = None,
    ) -> None:
        """Store the events of a transfer.

        Args:
            over: event after the whole transfer; None: it is over.
            layers: event after each layer of a copy to the device.
            device: device whose current stream waits; None: torch's current device.
        """
        self._over, self._layers, self._device = over, layers, device

    def done(self) -> bool:
        """Whether all layers have arrived; does not wait."""
        return self._over is None or self._over.query()

    def wait(self) -> None:
        """Wait on the host until all layers have arrived."""
        if self._over is not None:
            self._over.synchronize()

    def wait_layer(self, layer: int) -> None:
        """Let the device's current stream wait for one layer; the host does not wait."""
        if self._layers:
            torch.cuda.current_stream(self._device).wait_event(self._layers[layer])


class Transfers:
    """Copies of pages between a pool on the device and one in host memory."""

    def __init__(self, pool: Tensor, host: Tensor) -> None:
        """Create the streams and events.

        Args:
            pool: pool on the device, [layers, pages, 2, page_size, H, D].
            host: pool in host memory, [pages, layers, 2, page_size, H, D]; pinned if the device is a GPU.
        """
        self.pool, self.host = pool, host
        self._on_card = pool.device.type == "cuda"
        self._in = torch.cuda.Stream(pool.device) if self._on_card else None
        self._out = torch.cuda.Stream(pool.device) if self._on_card else None
        # All copies to the device use the same events: copies of one stream finish in order, so waiting for a later one
        # includes all before it.  External: a captured wait waits for the last record at each replay.
        self._arrived = [torch.cuda.Event(external=True) for _ in pool] if self._on_card else []
        with torch.cuda.device_of(pool):  # an event belongs to the device of its first record
            for event in self._arrived:
                event.record()

    def reload(self, host_pages: list[int], pages: list[int]) -> Ticket:
        """Start to copy host pages to the same number of device pages.

        Raises:
            RuntimeError: memory for the copy is not available; some pages may have been written.
        """
        with self._behind_current(self._in):
            source, to = send([np.asarray(some, dtype=np.int64) for some in (host_pages, pages)], self.pool.device)
            for layer, (device, host) in enumerate(zip(self.pool, self.host.unbind(1), strict=True)):
                if not takes_compiled(device):
                    device.index_copy_(0, to, host.index_select(0, source))
                    continue
                from attnbench.kernels.hstu.pages.api import copy_pages

                copy_pages(host, device, source, to)
                if self._on_card:
                    self._arrived[layer].record()
            return Ticket(self._mark(), self._arrived, self.pool.device)

    def offload(self, pages: list[int], host_pages: list[int]) -> Ticket:
        """Start to copy device pages to the same number of host pages.

        Raises:
            RuntimeError: memory for the copy is not available; some host pages may have been written.
        """
        with self._behind_current(self._out):
            (source,) = send([np.asarray(pages, dtype=np.int64)], self.pool.device)
            leaving = self.pool.transpose(0, 1).index_select(0, source)
            for at, first, count in runs(host_pages):
                self.host[first : first + count].copy_(leaving[at : at + count], non_blocking=True)
            return Ticket(self._mark())

    def wait_layer(self, layer: int) -> None:
        """Let the current stream wait for one layer of all copies to the device; may be captured in a graph."""
        if self._arrived:
            torch.cuda.current_stream(self.pool.device).wait_event(self._arrived[layer])

    def drain(self) -> None:
        """Wait on the host until no transfer is pending."""
        for stream in (self._in, self._out):
            if stream is not None:
                stream.synchronize()

    def _behind_current(self, stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
        if stream is None:
            return nullcontext()
        stream.wait_stream(torch.cuda.current_stream(self.pool.device))
        return torch.cuda.stream(stream)

    def _mark(self) -> torch.cuda.Event | None:
        if not self._on_card:
            return None
        event = torch.cuda.Event()
        event.record()
        return event


def runs(pages: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return runs of adjacent pages in a list: place in the list, first page, count."""
    found = []
    for _, group in groupby(enumerate(pages), key=lambda one: one[1] - one[0]):
        members = list(group)
        found.append((members[0][0], members[0][1], len(members)))
    return found
