"""Launch configuration of the quantised forward: tiles, warps, stages and code path.

The short form spells out what differs from the defaults:  ``m192n128w12s2-ws``
`space` lists the valid configurations of a case, `RULES` say why others are not; tuned defaults are rows of
``defaults.toml``.  Can be imported without torch and Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, ClassVar

from attnbench.kernels.shared.configs import Defaults, LaunchConfig, Spelled
from attnbench.kernels.shared.family import Family, Forward

TABLE = Defaults(Path(__file__).with_name("defaults.toml"))
SHARED_BYTES = 227 * 1024
"Shared memory that a program may use on sm_90."
QUERY_TILES = 2
"Query tiles of each warpgroup (ws): the next work item's queries are loaded while this one is computed."


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantConfig(LaunchConfig):
    """Launch configuration of the kernel; precision and dims belong to the case."""

    EXAMPLE: ClassVar[str] = "m192n128w12s4-ws"

    block_m: Annotated[int, Spelled("m{}", (64, 128, 192))]
    "queries of a tile"
    block_n: Annotated[int, Spelled("n{}", (64, 128))]
    "keys of a tile"
    warps: Annotated[int, Spelled("w{}", (4, 8, 12))]
    "of the products"
    stages: Annotated[int, Spelled("s{}", (1, 2, 3, 4, 5, 6))]
    "pipeline stages: tiles of keys and values in flight"
    order: Annotated[str, Spelled("-{}", ("plain", "ws"), far=3)] = "plain"
    "plain: the portable kernel; ws: the Hopper kernel, a producer warp and consumer warpgroups of 64 rows each"

    products: Annotated[str, Spelled("-{}", ("apart", "beside"))] = "apart"
    "apart: one product of a warpgroup at a time; beside: the next score product overlaps this tile's value product (ws)"

    programs: Annotated[int, Spelled("-x{}", (1, 2))] = 1
    "resident programs of an SM (ws)"

    def __post_init__(self) -> None:
        LaunchConfig.__post_init__(self)
        if self.order == "plain" and (self.products, self.programs) != ("apart", 1):
            raise ValueError("order=plain has no beside or x2; without, or order=ws")

    @property
    def groups(self) -> int:
        """Number of consumer warpgroups, of 64 rows each (ws)."""
        return self.block_m // 64

    @property
    def registers(self) -> int:
        """Registers of a consumer thread (ws): what the producer's warps, at 24 registers a thread, leave."""
        return {1: 232, 2: 240, 3: 160}[self.groups]

    @property
    def most_registers(self) -> int | None:
        """Registers of a thread at launch of a ws program, where several programs must fit on an SM."""
        return None if self.programs == 1 else 65536 // (self.programs * 128 * (self.groups + 1)) // 8 * 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Properties of a case and its card that the rules use."""

    dim: int
    capability: tuple[int, int] = (9, 0)

    @property
    def columns(self) -> int:
        """Of the quantised tensors."""
        return 64 if self.dim <= 64 else 128


def _warps(config: QuantConfig, shape: Shape) -> str | None:
    if config.block_m // config.warps < 16:
        return f"has {config.block_m // config.warps} rows for each warp; such as m128w8"
    if config.order == "plain" and (config.block_m == 192 or config.warps == 12):
        return "has rows or warps that are no power of two, which only ws supports; such as m128w8"
    return None


def _hopper(config: QuantConfig, shape: Shape) -> str | None:
    if config.order != "ws":
        return None
    whys = (
        (shape.capability != (9, 0), f"is for sm_90, not sm_{shape.capability[0]}{shape.capability[1]}; plain"),
        (shape.dim % 8 != 0, f"supports multiples of 8 dims, not {shape.dim}; plain"),
        (config.warps != config.block_m // 16, "needs 64 rows for four warps; such as m128w8"),
        (
            (config.groups == 1) != (config.programs == 2),
            "supports one warpgroup only with two programs per SM, and vice versa; m64 with x2",
        ),
        (config.block_n != 128, "has tiles of 128 keys; n128"),
        (config.stages < 2, "needs at least two stages; s2"),
    )
    return next((f"has the order ws, which {said}" for wrong, said in whys if wrong), None)


def _registers(config: QuantConfig, shape: Shape) -> str | None:
    if config.order == "ws":
        return None
    # Output, a tile's partial output, scores and weights, divided among the 32 threads of a warp.
    need = config.block_m * (2 * shape.columns + config.block_n * 5 // 4) // (32 * config.warps)
    return f"keeps {need} values a thread in registers; fewer keys or more warps" if need > 224 else None


def shared_bytes(config: QuantConfig, shape: Shape) -> int:
    """Shared memory of a ws program, without its barriers, which take less than 2 KiB."""
    queries, outputs = QUERY_TILES * config.block_m, 2 * config.block_m
    return (queries + outputs + 2 * config.stages * config.block_n) * shape.columns


def _shared_memory(config: QuantConfig, shape: Shape) -> str | None:
    have = shared_bytes(config, shape) + 2048
    room = (SHARED_BYTES + 1024) // config.programs - 1024
    if config.order == "plain" or have <= room:
        return None
    return f"takes {have // 1024} KiB of shared memory, of {room // 1024} available; fewer stages"


RULES: dict[str, Callable[[QuantConfig, Shape], str | None]] = {
    "warps": _warps,
    "warpgroups": _hopper,
    "registers": _registers,
    "shared-memory": _shared_memory,
}
"Rules by name: each returns what is wrong with a configuration, or None."


def fault(config: QuantConfig, shape: Shape) -> tuple[str, str] | None:
    """The first rule that a configuration breaks, and its message; None for a valid one."""
    return next(((name, said) for name, rule in RULES.items() if (said := rule(config, shape)) is not None), None)


def space(shape: Shape) -> list[QuantConfig]:
    """All valid configurations for a shape, in a fixed order."""
    there = (
        QuantConfig(block_m=m, block_n=n, warps=warps, stages=stages, order=order, products=products, programs=programs)
        for (order, products, programs), m, n, warps, stages in product(
            [*product(("ws",), ("apart", "beside"), (1, 2)), ("plain", "apart", 1)],
            (64, 128, 192),
            (64, 128),
            (4, 8, 12),
            (2, 3, 4),
        )
    )
    return [config for config in there if fault(config, shape) is None]


def default_config(shape: Shape) -> QuantConfig:
    """Tuned default; capability (0, 0) is the interpreter."""
    return TABLE.first(
        "forward",
        QuantConfig,
        cards=shape.capability[0],
        dim=shape.dim,
        also=lambda config: _hopper(config, shape) is None,
    )


FORWARD = Forward(QuantConfig, space, fault, default_config)
FAMILY = Family((FORWARD,))
