"""Names of block-sparse HSTU configurations: what differs from the default of one of the kernels.

``s192x64w12s4-ws`` and ``s64x16w4`` change the kernel that selects (Hopper and portable), ``a64x4w4r128``, ``ring12-ws``
and ``passes`` the kernel that attends; ``ws`` and ``portable`` choose both kernels.
Imports neither torch nor Triton.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from attnbench.kernels.hstu.bsa.hopper.attend_config import attend_fault, default_attend
from attnbench.kernels.hstu.bsa.hopper.select_config import default_select, select_fault
from attnbench.kernels.hstu.bsa.problem import BsaProblem, NamedDtype
from attnbench.kernels.shared.configs import LaunchConfig, Spelled
from attnbench.kernels.shared.family import Family, Part, Values

__all__ = ["FAMILY", "Shape", "shape_of"]

_WARPS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Properties of a case and its card that the configurations depend on."""

    problem: BsaProblem
    capability: tuple[int, int] = (9, 0)


def shape_of(
    *,
    capability: tuple[int, int],
    batch: int,
    nheads: int,
    seqlen: int,
    delta_q: int | None,
    attn_dim: int,
    linear_dim: int,
    dtype: str,
    block_size: int,
    block_counts: int,
    local_window: int | None,
    selection: str,
    pairs: bool,
    gates: bool,
    num_targets: str,
    alpha: float,
    scaling_seqlen: int,
    **others: Any,
) -> Shape:
    """The shape of a call with full-length sequences, by the names of the workload's axes."""
    queries = min(seqlen, delta_q or seqlen)
    named: Any = NamedDtype({"fp16": "float16", "bf16": "bfloat16"}.get(dtype, "float32"))
    return Shape(
        capability=capability,
        problem=BsaProblem(
            batch=batch,
            heads=nheads,
            queries=batch * queries,
            keys=batch * seqlen,
            max_seqlen=seqlen,
            max_seqlen_q=queries,
            attn_dim=attn_dim,
            linear_dim=linear_dim,
            dtype=named,
            block_size=block_size,
            block_counts=block_counts,
            local_window=local_window or 0,
            gates=(3 if local_window else 2) if gates else 0,
            alpha=alpha,
            scaling_seqlen=scaling_seqlen,
            shared=selection == "shared",
            pairs=pairs,
            has_targets=num_targets != "0",
            has_cache=delta_q is not None,
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change(LaunchConfig):
    """A change of the default, in fields of this kernel."""

    @property
    @abstractmethod
    def changes(self) -> dict[str, Any]:
        """The same in fields of `plan.BsaConfig`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Select(_Change):
    EXAMPLE: ClassVar[str] = "s64x16w4"

    rows: Annotated[int, Spelled("s{}", (32, 64, 128))]
    blocks: Annotated[int, Spelled("x{}", (16, 32, 64, 128))]
    warps: Annotated[int, Spelled("w{}", _WARPS)]
    registers: Annotated[int | None, Spelled("r{}", range(24, 249, 8))] = None

    @property
    def changes(self) -> dict[str, Any]:
        return {
            "select": None,
            "select_rows": self.rows,
            "select_blocks": self.blocks,
            "select_warps": self.warps,
            "select_registers": self.registers,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Attend(_Change):
    EXAMPLE: ClassVar[str] = "a64x4w4r128"

    rows: Annotated[int, Spelled("a{}", (32, 64, 128))]
    each: Annotated[int, Spelled("x{}", range(1, 65))]
    "tiles of a program"
    warps: Annotated[int, Spelled("w{}", _WARPS)]
    registers: Annotated[int | None, Spelled("r{}", range(24, 249, 8))] = None

    @property
    def changes(self) -> dict[str, Any]:
        return {
            "attend": None,
            "attend_rows": self.rows,
            "tiles_each": self.each,
            "attend_warps": self.warps,
            "attend_registers": self.registers,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Schedule(_Change):
    EXAMPLE: ClassVar[str] = "passes"

    schedule: Annotated[str | None, Spelled("-{}", ("ticket", "passes"))] = None
    programs_ahead: Annotated[int | None, Spelled("-ahead{}", range(1, 65536))] = None
    spare_pairs: Annotated[int | None, Spelled("-spare{}", range(65536))] = None

    @property
    def changes(self) -> dict[str, Any]:
        return {"attend": None} | {name: value for name, value in self.values.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class _HopperSelect(_Change):
    EXAMPLE: ClassVar[str] = "s192x64w12s4-ws"

    rows: Annotated[int, Spelled("s{}", (128, 192, 256, 384))]
    "queries of all warpgroups"
    blocks: Annotated[int, Spelled("x{}", (32, 64, 128))]
    warps: Annotated[int, Spelled("w{}", (8, 12))]
    stages: Annotated[int, Spelled("s{}", range(1, 33))]
    order: Annotated[str, Spelled("-{}", ("ws",))]
    rank: Annotated[str, Spelled("-{}", ("beside", "first"))] = "beside"
    "when blocks are ranked: while the value product runs, or before it is issued"

    @property
    def changes(self) -> dict[str, Any]:
        groups = self.warps // 4
        return {
            "select": {
                "groups": groups,
                "rows": self.rows // groups,
                "blocks": self.blocks,
                "stages": self.stages,
                "beside": self.rank == "beside",
            }
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _HopperAttend(_Change):
    EXAMPLE: ClassVar[str] = "ring12-ws"

    stages: Annotated[int | None, Spelled("-stages{}", range(2, 33))] = None
    ring: Annotated[int | None, Spelled("-ring{}", range(1, 1025))] = None
    "MiB of partial rows that the ring of buffers holds"
    step: Annotated[int | None, Spelled("-step{}", range(1, 1025))] = None
    "MiB of partial rows of a step"
    rows: Annotated[int | None, Spelled("-rows{}", (16, 32, 64))] = None
    jobs: Annotated[int | None, Spelled("-jobs{}", range(1, 33))] = None
    keep: Annotated[bool, Spelled("-{}", words={True: "keep"})] = False
    order: Annotated[str, Spelled("-{}", ("ws",))]

    @property
    def changes(self) -> dict[str, Any]:
        said = {
            "stages": self.stages,
            "ring_mib": self.ring and float(self.ring),
            "step_mib": self.step and float(self.step),
            "job_rows": self.rows,
            "jobs": self.jobs,
            "keep": self.keep or None,
        }
        return {"attend": {name: value for name, value in said.items() if value is not None}}


_CHOICES: Mapping[str, Values] = {"portable": {"select": None, "attend": None}, "ws": {"select": {}, "attend": {}}}
"Both kernels portable, or both for Hopper."
_MIXED: Mapping[tuple[bool, bool], str] = {
    (True, True): "ws",
    (False, False): "portable",
    (True, False): "select-ws",
    (False, True): "attend-ws",
}
"Name of a default, by whether the kernel that selects and the one that attends are Hopper kernels."
_MIXES: Mapping[str, Values] = {
    "select-ws": {"select": {}, "attend": None},
    "attend-ws": {"select": None, "attend": {}},
}

# Rows, blocks or tiles of a program, warps, register limit: those without spills up to 128 dims, bf16, sm_90.
_SELECTS = ((64, 16, 4, None), (64, 16, 4, 128), (64, 32, 4, None), (64, 64, 4, None), (128, 32, 8, None))
_ATTENDS = (
    (64, 1, 4, 128),
    (64, 2, 4, 128),
    (64, 4, 4, 128),
    (64, 8, 4, 128),
    (64, 4, 4, None),
    (128, 2, 8, None),
    (128, 4, 8, None),
)
_NARROW = ((64, 4, 4, 96), (64, 4, 4, 80), (128, 2, 8, 80))
"""More programs fit on an SM; above 64 dims they spill, or their products do not fit into the registers at all."""
# Rows of all warpgroups, means of a tile, warps, stages, when blocks are ranked; above 64 dims, and up to them.
_HOPPER_SELECTS = (
    (
        (192, 64, 12, 4, "beside"),
        (192, 64, 12, 4, "first"),
        (192, 32, 12, 8, "beside"),
        (128, 64, 8, 5, "beside"),
        (128, 64, 8, 5, "first"),
        (256, 32, 8, 5, "beside"),
    ),
    (
        (384, 32, 12, 8, "beside"),
        (384, 32, 12, 8, "first"),
        (192, 32, 12, 16, "beside"),
        (192, 64, 12, 8, "first"),
        (256, 32, 8, 16, "beside"),
        (128, 64, 8, 8, "first"),
    ),
)
_HOPPER_ATTENDS: tuple[dict[str, Any], ...] = (
    {"stages": 2},
    {"ring": 12},
    {"ring": 32},
    {"step": 3},
    {"step": 12},
    {"rows": 16},
    {"jobs": 8},
    {"keep": True},
)
_SCHEDULES: tuple[dict[str, Any], ...] = (
    {"programs_ahead": 384},
    {"programs_ahead": 1536},
    {"spare_pairs": 0},
    {"spare_pairs": 3},
)


class _Kernels(Part[Shape]):
    side, hint = "both", "s… or a…"

    def begins(self, text: str) -> bool:
        return True

    def space(self, shape: Shape) -> Mapping[str, Values]:
        return dict(_CHOICES) | {change.short: change.changes for change in _changes(shape)}

    def read(self, text: str, shape: Shape) -> Values:
        there = self.space(shape)
        if text not in there and text != self.default(shape):
            raise ValueError(f"is not known; one of the {len(there)} listed for this shape")
        return there[text] if text in there else _MIXES[text]

    def tuned(self, shape: Shape) -> str:
        p, card = shape.problem, shape.capability
        return _MIXED[
            select_fault(p, default_select(p), capability=card) is None,
            attend_fault(p, default_attend(p), capability=card) is None,
        ]


FAMILY = Family((_Kernels(),))


def _changes(shape: Shape) -> Iterator[_Change]:
    narrow = max(shape.problem.attn_dim, shape.problem.linear_dim) <= 64
    for rows, blocks, warps, stages, rank in _HOPPER_SELECTS[narrow]:
        yield _HopperSelect(rows=rows, blocks=blocks, warps=warps, stages=stages, order="ws", rank=rank)
    for fields in _HOPPER_ATTENDS:
        yield _HopperAttend(**fields, order="ws")
    yield _Schedule(schedule="passes")
    for rows, blocks, warps, registers in _SELECTS:
        yield _Select(rows=rows, blocks=blocks, warps=warps, registers=registers)
    for rows, each, warps, registers in _ATTENDS + _NARROW * narrow:
        yield _Attend(rows=rows, each=each, warps=warps, registers=registers)
    for fields in _SCHEDULES:
        yield _Schedule(**fields)
