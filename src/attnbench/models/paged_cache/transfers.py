"""Pages between device and host memory.

On a card both ways have a stream of their own, and a step waits on the device, layer by layer.  A copy between host and
device is made of runs of neighbouring host pages by way of a contiguous buffer on the device: single pages are several
times slower over PCIe.  On a CPU the same calls copy at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby

import torch
from torch import Tensor


class Ticket:
    """A transfer that was started."""

    def __init__(self, over: torch.cuda.Event | None = None, layers: Sequence[torch.cuda.Event] = ()) -> None:
        """Started on a stream.

        Args:
            over: behind all of it; None: it is over.
            layers: behind each layer of what goes to the device.
        """
        self._over, self._layers = over, layers

    def done(self) -> bool:
        """Whether all layers have arrived; does not wait."""
        return self._over is None or self._over.query()

    def wait(self) -> None:
        """Wait on the host until all layers have arrived."""
        if self._over is not None:
            self._over.synchronize()

    def wait_layer(self, layer: int) -> None:
        """Let the current stream wait for one layer; the host does not wait."""
        if self._layers:
            torch.cuda.current_stream().wait_event(self._layers[layer])


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
        for event in self._arrived:
            event.record()

    def reload(self, host_pages: list[int], pages: list[int]) -> Ticket:
        """Start to copy host pages to as many device pages.

        Raises:
            RuntimeError: memory for the copy is not there; pages may have been written in part.
        """
        with self._behind_current(self._in):
            to = self._index(pages)
            for layer, (device, host) in enumerate(zip(self.pool, self.host, strict=True)):
                arrived = torch.empty((len(pages), *device.shape[1:]), dtype=device.dtype, device=device.device)
                for at, first, count in runs(host_pages):
                    arrived[at:at + count].copy_(host[first:first + count], non_blocking=True)
                device.index_copy_(0, to, arrived)
                if self._on_card:
                    self._arrived[layer].record()
            return Ticket(self._mark(), self._arrived)

    def offload(self, pages: list[int], host_pages: list[int]) -> Ticket:
        """Start to copy device pages to as many host pages.

        Raises:
            RuntimeError: memory for the copy is not there; host pages may have been written in part.
        """
        with self._behind_current(self._out):
            source = self._index(pages)
            for device, host in zip(self.pool, self.host, strict=True):
                leaving = device.index_select(0, source)
                for at, first, count in runs(host_pages):
                    host[first:first + count].copy_(leaving[at:at + count], non_blocking=True)
            return Ticket(self._mark())

    def wait_layer(self, layer: int) -> None:
        """Let the current stream wait for one layer of all that was started to come in; may be captured in a graph."""
        if self._arrived:
            torch.cuda.current_stream().wait_event(self._arrived[layer])

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

    def _index(self, pages: list[int]) -> Tensor:
        found = torch.tensor(pages, dtype=torch.int64, pin_memory=self._on_card)
        return found.to(self.pool.device, non_blocking=True)

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
