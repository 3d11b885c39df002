"""Launch configuration of the block-sparse forward in 8 bits: tiles, warps, stages and code path.

The short form spells out what differs from the defaults:  ``m128n128w8s4-ws-beside``
`space` lists the valid configurations of a case, `RULES` say why others are not; defaults are rows of
``defaults.toml``.  Can be imported without torch and Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, ClassVar

from attnbench.kernels.flash.quant.config import QUERY_TILES
from attnbench.kernels.shared.configs import Defaults, LaunchConfig, Spelled
from attnbench.kernels.shared.family import Family, Forward

TABLE = Defaults(Path(__file__).with_name("defaults.toml"))
BARRIER_BYTES = 2048
"Upper bound of the bytes of a program's barriers."


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseQuantConfig(LaunchConfig):
    """Launch configuration of the kernel; precision, dims and blocks belong to the case."""

    EXAMPLE: ClassVar[str] = "m128n128w8s4-ws-beside"

    block_m: Annotated[int, Spelled("m{}", (64, 128))]
    "queries of a tile: those of a block, or half of them"
    block_n: Annotated[int, Spelled("n{}", (64, 128))]
    "keys of a tile: those of a block, or half of them"
    warps: Annotated[int, Spelled("w{}", (4, 8))]
    "warps that compute products"
    stages: Annotated[int, Spelled("s{}", (1, 2, 3, 4, 5, 6))]
    "pipeline stages: tiles of keys and values in flight"
    order: Annotated[str, Spelled("-{}", ("plain", "ws"), far=3)] = "plain"
    "plain: the portable kernel; ws: the Hopper kernel, a producer warp and consumer warpgroups of 64 rows each"
    products: Annotated[str, Spelled("-{}", ("apart", "beside"))] = "apart"
    "apart: one product of a warpgroup at a time; beside: the next score product overlaps this tile's value product (ws)"
    programs: Annotated[int, Spelled("-x{}", (1, 2, 3))] = 1
    "resident programs of an SM (ws)"

    def __post_init__(self) -> None:
        LaunchConfig.__post_init__(self)
        if self.order == "plain" and (self.products, self.programs) != ("apart", 1):
            raise ValueError("order=plain has no beside or x…; without, or order=ws")

    @property
    def groups(self) -> int:
        """Number of consumer warpgroups, of 64 rows each (ws)."""
        return self.block_m // 64

    @property
    def registers(self) -> int:
        """Registers of a thread at launch of a ws program: a multiple of 8 for which `programs` programs fit on an SM."""
        return min(248, 65536 // (self.programs * 128 * (self.groups + 1)) // 8 * 8)

    @property
    def consumer_registers(self) -> int:
        """Registers of a consumer thread (ws): what the producer's warps, at 24 registers a thread, leave."""
        return min(240, (self.registers * (self.groups + 1) - 24) // self.groups // 8 * 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Properties of a case and its card that the rules use."""

    dim: int
    block_q: int = 128
    block_k: int = 128
    capability: tuple[int, int] = (9, 0)

    @property
    def columns(self) -> int:
        """Columns of the quantised tensors."""
        return 64 if self.dim <= 64 else 128


def _blocks(config: SparseQuantConfig, shape: Shape) -> str | None:
    if config.block_m > shape.block_q:
        return f"has tiles of {config.block_m} queries, and blocks have {shape.block_q}; m{shape.block_q}"
    if config.block_n > shape.block_k:
        return f"has tiles of {config.block_n} keys, and blocks have {shape.block_k}; n{shape.block_k}"
    if config.block_m // config.warps < 16:
        return f"has {config.block_m // config.warps} rows for each warp; such as m128w8"
    return None


def _hopper(config: SparseQuantConfig, shape: Shape) -> str | None:
    if config.order != "ws":
        return None
    whys = (
        (shape.capability != (9, 0), f"is for sm_90, not sm_{shape.capability[0]}{shape.capability[1]}; plain"),
        (shape.dim % 8 != 0, f"supports multiples of 8 dims, not {shape.dim}; plain"),
        (config.warps != config.block_m // 16, "needs 64 rows for four warps; such as m128w8"),
        (config.block_n != shape.block_k, f"needs tiles of a whole block of keys; n{shape.block_k}"),
        (config.stages < 2, "needs at least two stages; s2"),
    )
    return next((f"has the order ws, which {said}" for wrong, said in whys if wrong), None)


def _registers(config: SparseQuantConfig, shape: Shape) -> str | None:
    if config.order == "plain":
        # Output, a tile's partial output, scores and weights, divided among the 32 threads of a warp.
        need = config.block_m * (2 * shape.columns + config.block_n * 5 // 4) // (32 * config.warps)
        return f"keeps {need} values a thread in registers; fewer keys or more warps" if need > 224 else None
    # ptxas limits a product to the registers at launch, even if consumer threads are given more later.
    product = config.block_n // 2 + 26
    if product > config.registers:
        return f"takes {product} registers for a product, of {config.registers} at launch; fewer programs or keys"
    # Output and partial output, with scores or weights as an operand; about twenty for rows and sizes.
    scores, weights, half = config.block_n // 2, config.block_n // 8, shape.columns // 2
    most = half + scores + half if config.products == "beside" else half + max(half, scores) + weights
    if most + 20 <= config.consumer_registers:
        return None
    return (
        f"takes about {most + 20} registers a thread, of {config.consumer_registers} available; fewer programs or keys"
    )


def shared_bytes(config: SparseQuantConfig, shape: Shape) -> int:
    """Shared memory of a ws program, without its barriers, which take less than BARRIER_BYTES."""
    queries, outputs = QUERY_TILES * config.block_m, 2 * config.block_m
    return (queries + outputs + 2 * config.stages * config.block_n) * shape.columns


def _shared_memory(config: SparseQuantConfig, shape: Shape) -> str | None:
    have, room = shared_bytes(config, shape) + BARRIER_BYTES, 228 * 1024 // config.programs - 1024
    if config.order == "plain" or have <= room:
        return None
    return f"takes {have // 1024} KiB of shared memory, of {room // 1024} available; fewer stages"


RULES: dict[str, Callable[[SparseQuantConfig, Shape], str | None]] = {
    "blocks": _blocks,
    "warpgroups": _hopper,
    "registers": _registers,
    "shared-memory": _shared_memory,
}
"Rules by name: each returns what is wrong with a configuration, or None."


def fault(config: SparseQuantConfig, shape: Shape) -> tuple[str, str] | None:
    """The first rule that a configuration breaks, and its message; None for a valid one."""
    return next(((name, said) for name, rule in RULES.items() if (said := rule(config, shape)) is not None), None)


def space(shape: Shape) -> list[SparseQuantConfig]:
    """All valid configurations for a shape, in a fixed order."""
    forms = [*product(("ws",), ("apart", "beside"), (1, 2, 3)), ("plain", "apart", 1)]
    there = (
        SparseQuantConfig(
            block_m=m, block_n=n, warps=warps, stages=stages, order=order, products=products, programs=programs
        )
        for (order, products, programs), m, n, warps, stages in product(
            forms, (64, 128), (64, 128), (4, 8), (2, 3, 4, 5, 6)
        )
    )
    return [config for config in there if fault(config, shape) is None]


def default_config(shape: Shape) -> SparseQuantConfig:
    """The default; capability (0, 0) is the interpreter."""
    return TABLE.first(
        "forward",
        SparseQuantConfig,
        cards=shape.capability[0],
        dim=shape.dim,
        block_q=shape.block_q,
        block_k=shape.block_k,
        also=lambda config: _hopper(config, shape) is None,
    )


FORWARD = Forward(SparseQuantConfig, space, fault, default_config)
FAMILY = Family((FORWARD,))
