"""The programs of a grid, one after the other or several at a time, and the launchers that start them."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc

from . import barriers
from .language import STAND_INS, inline_asm_elementwise
from .memory import Memory, View
from .mistakes import Mistake
from .outside import Outside, Watched
from .program import Function, Names, like
from .schedule import Schedule, together
from .tiles import Int, Pointer, Tile, torch_dtype, whole
from .transfers import Descriptor, Transfers


@contextmanager
def machine_runs(module: Any, *names: str, seed: int = 0, at_once: int | None = None) -> Iterator[None]:
    """While open, run these kernels of a module on the machine, launched as they are on a card, with CPU tensors.

    Args:
        module: with the kernels as attributes; not imported for the interpreter.
        names: names of the kernels.
        seed: of the interleaving.
        at_once: how many programs, as in `run`.
    """
    kernels = {name: getattr(module, name) for name in names}
    for name, kernel in kernels.items():
        setattr(module, name, _Launches(kernel, seed, at_once))
    try:
        yield
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)


class _Launches:
    """Replaces a kernel: ``kernel[grid](...)`` runs it on the machine."""

    def __init__(self, kernel: Any, seed: int, at_once: int | None) -> None:
        self._kernel, self._seed, self._at_once = kernel, seed, at_once

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *values, **named: run(
            self._kernel, grid, *values, seed=self._seed, at_once=self._at_once, **named
        )


def run(kernel: Any, grid: Any, *values: Any, seed: int = 0, at_once: int | None = None, **named: Any) -> None:
    """Run a grid of a kernel.

    Args:
        kernel: decorated with `gluon.jit`.
        grid: programs along up to three axes, or a function from the arguments by name to these.
        values: arguments: CPU tensors, host descriptors of them, numbers, tuples of these.
        seed: of the interleaving.
        at_once: how many programs run at a time, each started when another ends; then accesses to global memory are checked
            too, except those of bulk copies.  None: one after the other, without that check.
        named: arguments by name; of the compiler options only num_warps has an effect here.

    Raises:
        Mistake: of the kernel; see `mistakes`.
        Unsupported: the kernel uses something without a stand-in.
    """
    given = dict(zip(kernel.arg_names, values, strict=False)) | named
    options = {name: given.pop(name) for name in list(given) if name not in kernel.arg_names}
    shape = tuple(grid(given) if callable(grid) else grid if isinstance(grid, Sequence) else (grid,))
    shape += (1,) * (3 - len(shape))
    constants = {param.name for param in kernel.params if param.is_constexpr}
    arguments = {name: _argument(value, name in constants) for name, value in given.items()}
    events, watched = itertools.count(1), None if at_once is None else Watched()
    programs = (
        _Program(shape, place[::-1], options.get("num_warps", 4), Schedule(f"{seed} {place}", events), watched)
        for place in itertools.product(*map(range, reversed(shape)))
    )
    together((program.begun(kernel, arguments) for program in programs), at_once or 1, random.Random(seed))


def _argument(value: Any, constant: bool) -> Any:
    if isinstance(value, tl.constexpr):
        value, constant = value.value, True
    if isinstance(value, torch.Tensor):
        return Pointer.of(value)
    if hasattr(value, "block_shape"):
        return Descriptor(value)
    if constant or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return torch.tensor(value).item()
    if isinstance(value, (tuple, list)):
        return like(value, [_argument(one, False) for one in value])
    return whole(value) if isinstance(value, int) else value


class _Program:
    """One program of a grid."""

    def __init__(
        self, grid: tuple[int, ...], place: tuple[int, ...], warps: int, schedule: Schedule, watched: Watched | None
    ) -> None:
        self._grid, self._place, self._warps, self._schedule = grid, place, warps, schedule
        self._outside = Outside(schedule, watched)
        self._transfers = Transfers(schedule, self._outside)
        self._name = f"program {place[0]}, " if watched is not None else ""

    def begun(self, kernel: Any, arguments: dict[str, Any]) -> tuple[Schedule, Callable[[], None]]:
        """For `together`."""
        body = Function(kernel, self._names())
        self._schedule.at_end = self._transfers.end
        return self._schedule, lambda: self._schedule.begin(
            self._name.removesuffix(", ") or "program", self._warps, lambda: body(**arguments)
        )

    def _names(self) -> Names:
        moves, outside, tma, mbarrier = self._transfers, self._outside, hopper.tma, hopper.mbarrier
        by_pointer = {"load": outside.load, "store": outside.store, "atomic_add": outside.atomic_add}
        pure = [
            (getattr(language, name), mine)
            for name, mine in STAND_INS.items()
            for language in (tl, gl)
            if hasattr(language, name)
        ]
        mine = {
            gl: {
                "program_id": self._program_id,
                "num_programs": self._num_programs,
                "num_warps": self._num_warps,
                "allocate_shared_memory": self._allocate,
                "warp_specialize": self._warp_specialize,
                "inline_asm_elementwise": self._assembly,
                **by_pointer,
            },
            tl: {"program_id": self._program_id, "num_programs": self._num_programs, **by_pointer},
            async_copy: {
                "async_load": moves.copy,
                "async_copy_global_to_shared": moves.copy,
                "mbarrier_arrive": moves.copies_arrive,
                "commit_group": moves.commit,
                "wait_group": moves.wait_group,
            },
            hopper: {
                "warpgroup_mma": moves.multiply,
                "warpgroup_mma_wait": moves.wait,
                "warpgroup_mma_init": lambda value: value,
                "fence_async_shared": moves.fence,
            },
            mbarrier: {
                "init": barriers.make,
                "invalidate": barriers.invalidate,
                "arrive": barriers.arrive,
                "expect": barriers.expect,
                "wait": barriers.wait,
            },
            tma: {
                "async_load": moves.load,
                "async_copy_global_to_shared": moves.load,
                "async_store": moves.store,
                "async_copy_shared_to_global": moves.store,
                "async_atomic_add": moves.add,
                "store_wait": moves.store_wait,
            },
            # Grids run one after the other here.
            gdc: {"gdc_launch_dependents": lambda: None, "gdc_wait": lambda: None},
        }
        of_machine = [
            (getattr(module, name), stand_in)
            for module, those in mine.items()
            for name, stand_in in those.items()
            if hasattr(module, name)
        ]
        # Triton 3.6 has no function for the reduction: a kernel module that defines one gets the stand-in.
        return Names(pure + of_machine, {"add_tile": moves.add})

    def _assembly(self, asm: str, *given: Any, **named: Any) -> Any:
        """A wait for bulk writes, for which Triton 3.6 has no function, or what `inline_asm_elementwise` knows."""
        if wait := re.fullmatch(r"cp\.async\.bulk\.wait_group (\d+); mov\.u32 \$0, 0;", asm):
            return self._transfers.store_wait(int(wait[1]), read_only=False)
        return inline_asm_elementwise(asm, *given, **named)

    def _program_id(self, axis: int) -> Int:
        return Int(self._place[axis])

    def _num_programs(self, axis: int) -> Int:
        return Int(self._grid[axis])

    def _num_warps(self) -> int:
        return self._schedule.task.warps

    def _allocate(self, element_ty: Any, shape: Sequence[int], layout: Any, value: Tile | None = None) -> View:
        kind = torch_dtype(element_ty)
        count = 1
        for size in shape:
            count *= size
        memory = Memory(self._schedule, count * kind.itemsize, len(self._schedule.memories))
        self._schedule.memories.append(memory)
        view = View(memory, memory.bytes.view(kind).view(*shape), layout)
        if value is not None:
            view.store(value)
        return view

    def _warp_specialize(
        self,
        functions_and_args: Sequence,
        worker_num_warps: Sequence[int],
        worker_num_regs: Sequence[int] | None = None,
    ) -> Any:
        schedule, (default, *workers) = self._schedule, functions_and_args
        if len(schedule.tasks) > 1 or len(worker_num_warps) != len(workers):
            raise Mistake("warp_specialize: within itself, or its lists differ in length")
        mine = schedule.task
        mine.name = f"{self._name}partition 0 ({default[0].name})"
        for number, ((body, args), warps) in enumerate(zip(workers, worker_num_warps, strict=True), 1):
            schedule.start(
                f"{self._name}partition {number} ({body.name})", warps, lambda body=body, args=args: body(*args)
            )
        result = default[0](*default[1])
        others = schedule.tasks[1:]
        schedule.pause(lambda: all(task.thread.dead for task in others), lambda: "the other partitions' end")
        for task in others:
            mine.known |= task.known
        return result
