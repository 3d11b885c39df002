"""Shared memory: its contents, the accesses to it, and whether something orders them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .mistakes import MissingFence, Mistake, OutOfBounds, Race, Unsupported
from .schedule import Schedule, Task
from .tiles import Tile, dtype_of, torch_dtype


@dataclass(eq=False)
class Access:
    """One read or write access to a region."""

    what: str
    task: Task
    view: View
    write: bool
    bit: int
    unfenced: bool
    "written by threads, without a fence yet"
    fences: int = 0
    "bits of the fences that ordered it"
    over: bool = True
    "False: still in flight"


class Memory:
    """One allocation; bytes that were never written are NaN in every float type."""

    def __init__(self, schedule: Schedule, size: int, number: int) -> None:
        self.bytes = torch.full((size,), 255, dtype=torch.uint8)
        self.schedule = schedule
        self.name, self.place = f"allocation {number}", ""
        self.barriers: dict[int, Any] = {}
        "barriers by their first byte"
        self.masks: dict[tuple[Any, ...], torch.Tensor] = {}
        "bytes of the regions that were asked for, by shape, strides and first byte"
        self._accesses: list[Access] = []

    def call(self, view: View, name: str) -> None:
        """Name the allocation as the program does before warp specialization, or by its place in a tuple or aggregate."""
        if len(self.schedule.tasks) == 1 and view.whole:
            if "[" in name or "." in name:
                self.place = name
            else:
                self.name = name

    def touch(self, view: View, what: str, *, write: bool, threads: bool, later: bool = False) -> Access:
        """Record an access by the running task.

        Args:
            view: the region.
            what: words for the error.
            write: whether it is a write.
            threads: by loads and stores of the task's threads, which complete at once unless `later`; otherwise by the
                asynchronous proxy, and the caller has to complete it.
            later: the caller has to complete it.

        Raises:
            Race: another access to a part of the region, one of the two a write, is not known to be complete.
            MissingFence: the asynchronous proxy accesses what threads wrote without a fence.
        """
        task = self.schedule.task
        for other in self._accesses:
            if (write or other.write) and view.overlaps(other.view):
                self._check(other, task, view, what, threads)
        access = Access(what, task, view, write, self.schedule.event(), write and threads, threads)
        self._accesses = [other for other in self._accesses if not self._covers(access, other)]
        self._accesses.append(access)
        if threads and not later:
            task.known |= access.bit
        return access

    def fence(self, task: Task, bit: int) -> None:
        for access in self._accesses:
            if access.unfenced and access.bit & task.known:
                access.fences |= bit

    def _check(self, other: Access, task: Task, view: View, what: str, threads: bool) -> None:
        if not other.bit & task.known:
            when = "is not put before it by a barrier or wait" if other.over else "is in flight"
            raise Race(f"{task.name}: {what} of {view}, while {other.what} of {other.view} by {other.task.name} {when}")
        if not threads and other.unfenced and not other.fences & task.known:
            raise MissingFence(
                f"{task.name}: {what} of {view}, and nobody called fence_async_shared between that and "
                f"the {other.what} of {other.view} by {other.task.name}"
            )

    def _covers(self, new: Access, old: Access) -> bool:
        """Whether every access that is ordered after the new one is ordered after the old one, and conflicts with both."""
        if not old.bit & new.task.known or (old.write and not new.write):
            return False
        return new.view.dense and new.view.begin <= old.view.begin and old.view.end <= new.view.end


class View:
    """Stand-in for a shared memory descriptor: a strided region of an allocation."""

    def __init__(self, memory: Memory, data: torch.Tensor, layout: Any, label: str = "") -> None:
        self.memory, self.data, self.layout, self.label = memory, data, layout, label
        size = data.element_size()
        self.begin = data.storage_offset() * size
        self.end = self.begin + size * (
            1 + sum((n - 1) * stride for n, stride in zip(data.shape, data.stride(), strict=True))
        )
        self.dense = data.numel() * size == self.end - self.begin
        self._parts: dict[int, View] = {}
        "what `index` returned: a kernel asks for the same stages and barriers again and again"

    def __str__(self) -> str:
        return self.memory.name + self.label + f" of {self.memory.place}" * bool(self.memory.place)

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"shared memory descriptor: {name}")

    def overlaps(self, other: View) -> bool:
        if self.begin >= other.end or other.begin >= self.end:
            return False
        return (self.dense and other.dense) or bool(torch.logical_and(self._bytes(), other._bytes()).any())

    def _bytes(self) -> torch.Tensor:
        """The bytes of the allocation that belong to the region."""
        size = self.data.element_size()
        region = (*self.data.shape, size), (*(stride * size for stride in self.data.stride()), 1), self.begin
        if region not in self.memory.masks:
            self.memory.masks[region] = torch.zeros(len(self.memory.bytes), dtype=torch.bool)
            self.memory.masks[region].as_strided(*region).fill_(True)
        return self.memory.masks[region]

    @property
    def shape(self) -> list[int]:
        return list(self.data.shape)

    @property
    def rank(self) -> int:
        return self.data.dim()

    @property
    def numel(self) -> int:
        return self.data.numel()

    @property
    def dtype(self) -> Any:
        return dtype_of(self.data.dtype)

    @property
    def type(self) -> View:
        return self

    @property
    def nbytes_per_cta(self) -> int:
        return self.data.numel() * self.data.element_size()

    @property
    def whole(self) -> bool:
        return self.nbytes_per_cta == len(self.memory.bytes)

    def index(self, index: int) -> View:
        if not 0 <= index < self.data.shape[0]:
            raise OutOfBounds(f"index {index} of {self}, which has {self.data.shape[0]}")
        if index not in self._parts:
            self._parts[index] = View(self.memory, self.data[index], self.layout, f"{self.label}[{index}]")
        return self._parts[index]

    def slice(self, start: int, length: int, dim: int = 0) -> View:
        if not 0 <= start <= start + length <= self.data.shape[dim]:
            raise OutOfBounds(f"slice {start}:{start + length} of {self}, which has {self.data.shape[dim]}")
        return View(
            self.memory,
            self.data.narrow(dim, start, length),
            self.layout,
            f"{self.label}[{dim}: {start}:{start + length}]",
        )

    def permute(self, order: Sequence[int]) -> View:
        return View(self.memory, self.data.permute(*order), self.layout, self.label)

    def reshape(self, shape: Sequence[int]) -> View:
        return View(self.memory, self.data.view(*shape), self.layout, self.label)

    def reinterpret(self, dtype: Any = None, shape: Sequence[int] | None = None, layout: Any = None) -> View:
        kind = torch_dtype(dtype if dtype is not None else self.dtype)
        shape = self.shape if shape is None else shape
        size = math.prod(shape) * kind.itemsize
        if not self.dense or self.begin + size > len(self.memory.bytes):
            raise OutOfBounds(f"reinterpret {self}: {size} bytes from byte {self.begin} of {len(self.memory.bytes)}")
        data = self.memory.bytes[self.begin : self.begin + size].view(kind).view(*shape)
        return View(self.memory, data, self.layout if layout is None else layout, self.label)

    _reinterpret = reinterpret

    def load(self, layout: Any = None) -> Tile:
        self.memory.schedule.pause()
        self.memory.touch(self, "load", write=False, threads=True)
        return Tile(self.data.clone())

    def store(self, value: Tile) -> None:
        self.memory.schedule.pause()
        self.demand("store", value.value)
        self.memory.touch(self, "store", write=True, threads=True)
        self.data.copy_(value.value)

    def demand(self, what: str, given: torch.Tensor) -> None:
        """Require the region's own shape and type."""
        if given.shape != self.data.shape or given.dtype != self.data.dtype:
            raise Mistake(
                f"{what}: {list(given.shape)} of {given.dtype} where {self} has {self.shape} of {self.data.dtype}"
            )

    def _keep_alive(self) -> None:
        pass
