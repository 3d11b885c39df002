"""Pages between device and host memory.

On a card both ways have a stream of their own, and a step waits on the device, layer by layer.  Pages come in by one
kernel a layer that reads pinned host memory, in whatever order they lie.  They leave by way of a contiguous buffer on
the device, in runs of neighbouring host pages, which the copy engine takes without a kernel.  One copy per page would be
several times slower over PCIe.  On a CPU the same calls copy at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from attnbench.models.paged_cache.packing import send


class Ticket:
    """A transfer that was started."""

    def __init__(
        self,
        over: torch.cuda.Event | None = None,
        layers: Sequence[torch.cuda.Event] = (),
        device: torch.device | None = None,
    ) -> None:
        """Started on a stream.

        Args:
            over: behind all of it; None: it is over.
            layers: behind each layer of what goes to the device.
            device: whose current stream waits; None: torch's current device.
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
    """Copies of pages between two pools [layers, pages, 2, page_size, H, D]."""

    def __init__(self, pool: Tensor, host: Tensor) -> None:
        """Nothing under way.

        Args:
            pool: on the device.
            host: in host memory, pinned where the device is a card.
        """
        self.pool, self.host = pool, host
        self._on_card = pool.device.type == "cuda"
        self._in = torch.cuda.Stream(pool.device) if self._on_card else None
        self._out = torch.cuda.Stream(pool.device) if self._on_card else None
        # The same events for all that comes in: copies of one stream are over in turn, so who waits for a later one
        # waits for all before it.  External: a graph that waits for one waits for its last record in every replay.
        self._arrived = [torch.cuda.Event(external=True) for _ in pool] if self._on_card else []
        with torch.cuda.device_of(pool):  # an event belongs to the device of its first record
            for event in self._arrived:
                event.record()

    def reload(self, host_pages: list[int], pages: list[int]) -> Ticket:
        """Start to copy host pages to as many device pages.

        Raises:
            RuntimeError: memory for the copy is not there; pages may have been written in part.
        """
        with self._behind_current(self._in):
            source, to = send([np.asarray(some, dtype=np.int64) for some in (host_pages, pages)], self.pool.device)
            for layer, (device, host) in enumerate(zip(self.pool, self.host, strict=True)):
                if not self._on_card:
                    device.index_copy_(0, to, host.index_select(0, source))
                    continue
                from attnbench.kernels.hstu.pages.api import copy_pages

                copy_pages(host, device, source, to)
                self._arrived[layer].record()
            return Ticket(self._mark(), self._arrived, self.pool.device)

    def offload(self, pages: list[int], host_pages: list[int]) -> Ticket:
        """Start to copy device pages to as many host pages.

        Raises:
            RuntimeError: memory for the copy is not there; host pages may have been written in part.
        """
        with self._behind_current(self._out):
            (source,) = send([np.asarray(pages, dtype=np.int64)], self.pool.device)
            neighbours = runs(host_pages)
            for device, host in zip(self.pool, self.host, strict=True):
                leaving = device.index_select(0, source)
                for at, first, count in neighbours:
                    host[first : first + count].copy_(leaving[at : at + count], non_blocking=True)
            return Ticket(self._mark())

    def wait_layer(self, layer: int) -> None:
        """Let the current stream wait for one layer of all that was started to come in; may be captured in a graph."""
        if self._arrived:
            torch.cuda.current_stream(self.pool.device).wait_event(self._arrived[layer])

    def drain(self) -> None:
        """Wait on the host until nothing is under way."""
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
    """Runs of neighbours in a list of pages: place in the list, first page, how many."""
    found = []
    for _, group in groupby(enumerate(pages), key=lambda one: one[1] - one[0]):
        members = list(group)
        found.append((members[0][0], members[0][1], len(members)))
    return found
