"""Asynchronous operations: bulk copies by tensor maps, copies by threads, and warpgroup products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .barriers import made
from .memory import Access, View
from .mistakes import Mistake, OutOfBounds, Unfinished
from .outside import Outside
from .schedule import Schedule
from .tiles import Pointer, Tile, dtype_of


class Descriptor:
    """A tensor map made on the host: boxes of a tensor, zeros outside it."""

    def __init__(self, host: Any) -> None:
        self.base, self.layout = host.base, getattr(host, "layout", None)
        self.shape, self.strides, self.block_shape = list(host.shape), list(host.strides), list(host.block_shape)
        self.dtype = dtype_of(self.base.dtype)
        self.outside = float("nan") if getattr(host, "padding", "zero") == "nan" else 0
        self._size = self.base.element_size()
        self._count = self.base.untyped_storage().nbytes() // self._size

    @property
    def block_type(self) -> Any:
        from triton.experimental.gluon import language as gl

        return gl.block_type(self.dtype, self.block_shape)

    @property
    def nbytes_per_cta(self) -> int:
        return self.block_type.nbytes

    def box(self, coord: Sequence[int]) -> tuple[torch.Tensor, tuple[slice, ...]] | None:
        """The part of a box inside the tensor, and its position in the box; None if there is none.

        Addresses are 64-bit sums that wrap around.

        Raises:
            OutOfBounds: a coordinate of more than 32 bits, or an element inside the shape but outside the storage.
        """
        if len(coord) != len(self.shape) or not all(-(2**31) <= at < 2**31 for at in coord):
            raise OutOfBounds(f"coordinates {list(map(int, coord))} of a tensor map of {len(self.shape)} axes")
        spans = [
            (max(0, -at), min(size, limit - at))
            for at, size, limit in zip(coord, self.block_shape, self.shape, strict=True)
        ]
        if any(low >= high for low, high in spans):
            return None
        first = sum((int(at) + low) * stride for at, (low, _), stride in zip(coord, spans, self.strides, strict=True))
        first = ((first * self._size + 2**63) % 2**64 - 2**63) // self._size + self.base.storage_offset()
        sizes = [high - low for low, high in spans]
        strides = [stride if size > 1 else 0 for stride, size in zip(self.strides, sizes, strict=True)]
        last = first + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if not 0 <= first <= last < self._count:
            raise OutOfBounds(
                f"the box at {list(map(int, coord))} reaches from element {first} to {last} of a storage "
                f"of {self._count}"
            )
        return self.base.as_strided(sizes, strides, first), tuple(slice(low, high) for low, high in spans)

    def demand(self, what: str, view: View) -> None:
        """Require a region with a box's shape and type."""
        if view.shape != self.block_shape or view.dtype != self.dtype:
            raise Mistake(
                f"{what}: {view} has {view.shape} of {view.dtype}, the tensor map {self.block_shape} of {self.dtype}"
            )


@dataclass(eq=False)
class Write:
    """A bulk store or reduction, from issue until it is in global memory."""

    over: bool = False


@dataclass(eq=False)
class Product:
    """An asynchronous product, from issue until it is waited for."""

    name: str
    reads: list[Access]
    over: bool = False

    def __str__(self) -> str:
        return self.name


class Transfers:
    """Stand-ins for one program."""

    def __init__(self, schedule: Schedule, outside: Outside) -> None:
        self.schedule, self.outside = schedule, outside
        self.landed = 0
        "bits of the bulk loads and of the threads' copies that completed"

    def fence(self, cluster: bool = False) -> None:
        """`fence_async_shared`."""
        bit = self.schedule.event()
        for memory in self.schedule.memories:
            memory.fence(self.schedule.task, bit)
        self.schedule.task.known |= bit

    # ── bulk copies ──

    def load(
        self,
        desc: Descriptor,
        coord: Sequence[int],
        barrier: View,
        result: View,
        pred: bool = True,
        multicast: bool = False,
        cache_policy: None = None,
    ) -> None:
        """`tma.async_load`: `Memory.touch` refuses other accesses to the region until the copy was waited for."""
        self.schedule.pause()
        if not pred:
            return
        desc.demand("bulk load", result)
        found, bar = desc.box(coord), made(barrier)
        access = result.memory.touch(result, "bulk load", write=True, threads=False)
        access.over = False
        self.landed |= access.bit

        def land() -> None:
            result.data.fill_(desc.outside)
            if found:
                source, where = found
                result.data[where] = source
            access.over = True
            bar.land(result.nbytes_per_cta, access.bit)

        self.schedule.flights.append(land)

    def store(self, desc: Descriptor, coord: Sequence[int], src: View, cache_policy: None = None) -> None:
        """`tma.async_store`."""
        self._leave(desc, coord, src, "bulk store", lambda there, mine: there.copy_(mine))

    def add(self, desc: Descriptor, coord: Sequence[int], src: View) -> None:
        """`tma.async_atomic_add`."""
        self._leave(desc, coord, src, "bulk add", lambda there, mine: there.add_(mine))

    def _leave(self, desc: Descriptor, coord: Sequence[int], src: View, what: str, work: Any) -> None:
        self.schedule.pause()
        desc.demand(what, src)
        found = desc.box(coord)
        access = src.memory.touch(src, what, write=False, threads=False)
        access.over = False
        self.schedule.task.stores.append(access)
        written = Write()
        self.schedule.task.writes.append(written)

        def leave() -> None:
            there, where = found or (None, ())
            mine = src.data[where].clone()
            access.over = True

            def write() -> None:
                if there is not None:
                    work(there, mine)
                written.over = True

            self.schedule.writes.append(write)

        self.schedule.flights.append(leave)

    def store_wait(self, pendings: int, read_only: bool = True) -> None:
        """`tma.store_wait`: for all stores and reductions of this partition except the last `pendings`.

        With `read_only` until shared memory was read, otherwise until global memory is written.
        """
        task = self.schedule.task
        if not read_only:
            writes = task.writes[: max(0, len(task.writes) - pendings)]
            self.schedule.pause(lambda: all(one.over for one in writes), lambda: f"{len(writes)} bulk writes")
            task.writes = task.writes[len(writes) :]
        first = task.stores[: max(0, len(task.stores) - pendings)]
        self.schedule.pause(lambda: all(access.over for access in first), lambda: f"{len(first)} bulk stores")
        for access in first:
            task.known |= access.bit
        task.stores = task.stores[len(first) :]

    def end(self) -> None:
        """Require that every load was waited for."""
        known = 0
        for task in self.schedule.tasks:
            known |= task.known
        if self.landed & ~known:
            raise Unfinished(f"{(self.landed & ~known).bit_count()} loads nobody waited for")
        for memory in self.schedule.memories:
            for barrier in memory.barriers.values():
                if barrier.bytes:
                    raise Unfinished(f"bytes that were expected never came: {barrier}")

    # ── copies by threads ──

    def copy(self, smem: View, pointer: Pointer, mask: Any = None, *_options: Any, **_hints: Any) -> None:
        """`async_copy.async_load`: zeros where masked; threads write it, so products need a fence."""
        self.schedule.pause()
        at, wanted = pointer.places(mask)
        smem.demand("asynchronous copy", pointer.flat[at])
        self.outside.read(pointer, at[wanted], "asynchronous copy")
        access = smem.memory.touch(smem, "asynchronous copy", write=True, threads=True, later=True)
        access.over = False
        self.landed |= access.bit
        self.schedule.task.copies.append(access)

        def land() -> None:
            smem.data.copy_(torch.where(wanted, pointer.flat[at], 0))
            access.over = True

        self.schedule.flights.append(land)

    def copies_arrive(self, barrier: View, increment_count: bool = True) -> None:
        """`async_copy.mbarrier_arrive`: each thread arrives when its previous copies have completed.

        The arrivals pass on what the thread did before, such as the loads of the addresses to copy.
        """
        self.schedule.pause()
        task, bar = self.schedule.task, made(barrier)
        copies, count, known = list(task.copies), 32 * task.warps, task.known
        for access in copies:
            known |= access.bit
        task.copies = [access for access in copies if not access.over]
        if increment_count:
            bar.pending += count

        def arrive() -> None:
            if all(access.over for access in copies):
                bar.arrive(count, known)
            else:
                self.schedule.flights.append(arrive)

        self.schedule.flights.append(arrive)

    def commit(self) -> None:
        """`async_copy.commit_group`."""
        task = self.schedule.task
        task.groups.append(task.copies)
        task.copies = []

    def wait_group(self, num_outstanding: int = 0) -> None:
        """`async_copy.wait_group`: for all groups of this partition except the last `pendings`."""
        task = self.schedule.task
        count = max(len(task.groups) - num_outstanding, 0)
        first = [access for group in task.groups[:count] for access in group]
        self.schedule.pause(lambda: all(access.over for access in first), lambda: f"{len(first)} copies")
        for access in first:
            task.known |= access.bit
        task.groups = task.groups[count:]

    # ── products ──

    def multiply(
        self,
        a: View | Tile,
        b: View,
        acc: Tile,
        *,
        use_acc: bool = True,
        precision: None = None,
        max_num_imprecise_acc: None = None,
        is_async: bool = False,
    ) -> Tile:
        """`warpgroup_mma`, computed at issue: `Memory.touch` forbids a change of the operands before it completes."""
        self.schedule.pause()
        task = self.schedule.task
        what = f"warpgroup_mma {len(task.products)} of {task.name}"
        reads = [
            one.memory.touch(one, "warpgroup_mma", write=False, threads=False)
            for one in (a, b)
            if isinstance(one, View)
        ]
        left, right = (one.value if isinstance(one, Tile) else one.data for one in (a, b))
        # The next product may continue from the result of a product in flight: products keep their order.
        start = acc.free if use_acc else acc.value
        if list(start.shape) != [left.shape[0], right.shape[1]] or left.shape[1] != right.shape[0]:
            raise Mistake(f"{what}: {list(left.shape)} times {list(right.shape)} into {list(start.shape)}")
        if left.dtype != right.dtype:
            raise Mistake(f"{what}: {left.dtype} times {right.dtype}")
        value = _product(left, right, start if use_acc else None, start.dtype)
        product = Product(what, reads)
        for access in reads:
            access.over = False
        task.products.append(product)
        if use_acc:
            acc.lent = product
        result = Tile(value, product, token=is_async)
        if not is_async:
            self._end(0)
        return result

    def wait(self, num_outstanding: int = 0, deps: Sequence[Tile] | None = None) -> Any:
        """`warpgroup_mma_wait`."""
        if deps is None:
            raise Mistake("warpgroup_mma_wait: deps must be given")
        self.schedule.pause()
        self._end(num_outstanding)
        results = tuple(Tile(one.data, one.product) for one in deps)
        return results[0] if len(results) == 1 else results

    def _end(self, outstanding: int) -> None:
        task = self.schedule.task
        count = max(len(task.products) - outstanding, 0)
        for product in task.products[:count]:
            product.over = True
            for access in product.reads:
                access.over = True
                task.known |= access.bit
        task.products = task.products[count:]


def _product(left: torch.Tensor, right: torch.Tensor, start: torch.Tensor | None, kind: torch.dtype) -> torch.Tensor:
    """A product as the tensor cores sum it, added to an accumulator.

    Sums of int8 are exact; those of 8-bit floats keep 13 fractional bits after each instruction, which sums 32 terms.

    Raises:
        Mistake: 8-bit operands and an accumulator of another kind.
    """
    if left.dtype == torch.int8 or kind == torch.int32:
        if left.dtype != torch.int8 or kind != torch.int32:
            raise Mistake(f"warpgroup_mma: {left.dtype} into {kind}")
        exact = (left.double() @ right.double()).to(kind)
        return exact if start is None else exact + start
    if left.itemsize > 1:
        value = _operand(left, kind) @ _operand(right, kind)
        return value if start is None else value + start
    value = torch.zeros(left.shape[0], right.shape[1]) if start is None else start
    for at in range(0, left.shape[1], 32):
        value = value + left[:, at : at + 32].float() @ right[at : at + 32].float()
        value = (value.view(torch.int32) & ~0x3FF).view(torch.float32)
    return value


def _operand(value: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """An operand as the tensor cores read it: of fp32 they use the upper 19 bits."""
    if value.dtype == torch.float32:
        return (value.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
    return value.to(kind)
