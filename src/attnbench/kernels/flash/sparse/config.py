"""Launch configuration of the block-sparse forward: tiles, warps, stages and code path.

The short form spells out what differs from the defaults:  ``m128n128w8s2-ws-deep-lazy``
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
"Shared memory that a program may use on sm_90, where an SM has 228 KiB, of which each program reserves 1 KiB."


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseConfig(LaunchConfig):
    """Launch configuration of the kernel; precision, dims and blocks belong to the case."""

    EXAMPLE: ClassVar[str] = "m128n128w8s2-ws-deep-lazy"

    block_m: Annotated[int, Spelled("m{}", (64, 128, 192, 256))]
    "queries of a tile: those of a block, half of them, or those of several blocks, whose keys are loaded once (ws)"
    block_n: Annotated[int, Spelled("n{}", (32, 64, 128))]
    "keys of a tile: those of a block, a part of them, or those of two blocks of a list (ws)"
    warps: Annotated[int, Spelled("w{}", (4, 8, 12, 16))]
    "warps that compute products"
    stages: Annotated[int, Spelled("s{}", (1, 2, 3, 4, 5, 6))]
    "pipeline stages: tiles of keys and values in flight"
    order: Annotated[str, Spelled("-{}", ("plain", "ws"), far=3)] = "plain"
    "plain: the portable kernel; ws: the Hopper kernel, a producer warp and consumer warpgroups of 64 rows each"
    rings: Annotated[str, Spelled("-{}", ("even", "deep", "joint"))] = "even"
    """even: as many key tiles in flight as value tiles; deep: one key tile more; joint: one ring for both, of which a stage
    holds the keys of a tile, and then its values (ws)"""
    rescale: Annotated[str, Spelled("-{}", ("eager", "lazy"))] = "eager"
    "when the output is rescaled: eager: as soon as the factor is known; lazy: while the next score product runs (ws)"
    weights: Annotated[str, Spelled("-{}", ("held", "double"))] = "held"
    "double: weights are double-buffered in registers, as in the dense forward (ws, with lazy)"
    scores: Annotated[str, Spelled("-{}", ("ss", "rs"))] = "ss"
    "where score products read queries: ss: in shared memory; rs: in registers (ws)"
    programs: Annotated[int, Spelled("-x{}", (1, 2, 3))] = 1
    "resident programs of an SM (ws)"

    def __post_init__(self) -> None:
        LaunchConfig.__post_init__(self)
        ws = self.rings, self.rescale, self.weights, self.scores, self.programs
        if self.order == "plain" and ws != ("even", "eager", "held", "ss", 1):
            raise ValueError("order=plain has no deep, joint, lazy, double, rs or x…; without, or order=ws")

    @property
    def groups(self) -> int:
        """Number of consumer warpgroups, of 64 rows each (ws)."""
        return self.block_m // 64

    @property
    def key_stages(self) -> int:
        """Key tiles in flight (ws)."""
        return self.stages + (self.rings == "deep")

    @property
    def tiles(self) -> int:
        """Tiles of keys and of values that a ws program has room for."""
        return self.stages if self.rings == "joint" else self.key_stages + self.stages

    def unit(self, block_q: int) -> int:
        """Queries of a unit, which has a list: those of a block, or half of them if a tile has one and a half blocks."""
        return block_q if self.block_m % block_q == 0 or block_q % self.block_m == 0 else 64

    def share(self, block_q: int) -> int:
        """How many units a work item processes together."""
        return max(1, self.block_m // self.unit(block_q))

    @property
    def registers(self) -> int:
        """Registers of a thread at launch of a ws program: a multiple of 8 for which `programs` programs fit on an SM."""
        return 65536 // (self.programs * 128 * (self.groups + 1)) // 8 * 8

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
    item_bytes: int = 2
    capability: tuple[int, int] = (9, 0)

    @property
    def columns(self) -> int:
        """Columns of a tile: a power of two, at least the 16 of a tensor core."""
        return max(16, 1 << (self.dim - 1).bit_length())


def query_tiles(config: SparseConfig, shape: Shape) -> int:
    """Query tiles of each warpgroup in a ws program: two, if the next work item's queries fit too."""
    return 1 + (shared_bytes(config, shape, 2) <= SHARED_BYTES // config.programs - 2048)


def shared_bytes(config: SparseConfig, shape: Shape, tiles: int = 1) -> int:
    """Shared memory of a ws program with so many query tiles, without its barriers, which take less than 2 KiB."""
    rows = config.tiles * config.block_n + tiles * config.block_m
    return rows * shape.columns * shape.item_bytes


def _blocks(config: SparseConfig, shape: Shape) -> str | None:
    form = config.order, config.rings, config.rescale, config.weights, config.scores
    if config.block_m > shape.block_q and form != ("ws", "even", "lazy", "held", "ss"):
        return (
            f"has tiles of several blocks of {shape.block_q} queries, which need ws-lazy without deep, joint, double and rs; "
            f"m{shape.block_q}"
        )
    several = config.block_n > shape.block_k
    if several and config.order == "ws" and config.share(shape.block_q) > 1:
        return f"has tiles of several blocks of queries and of keys; n{shape.block_k}, or m{shape.block_q}"
    if several and config.order == "plain":
        return f"has tiles of {config.block_n} keys, and blocks have {shape.block_k}; n{shape.block_k}"
    return None


def _hopper(config: SparseConfig, shape: Shape) -> str | None:
    if config.order != "ws":
        return None
    whys = (
        (shape.capability != (9, 0), f"is for sm_90, not sm_{shape.capability[0]}{shape.capability[1]}; plain"),
        (shape.item_bytes != 2, "needs 16-bit inputs; plain"),
        (
            shape.dim % 8 != 0 or shape.columns not in (64, 128),
            f"supports multiples of 8 from 40 to 128 dims, not {shape.dim}; plain",
        ),
        (config.warps != config.block_m // 16, "needs 64 rows for four warps; such as m128w8"),
        (config.block_n < 64, "needs tiles of at least 64 keys; n64"),
        (config.stages < 2, "needs at least two stages; s2"),
        (config.rings == "joint" and config.stages < 3, "supports joint with at least three stages; s3"),
        (config.rings == "joint" and config.weights == "double", "supports joint only without double; joint"),
        (
            config.scores == "rs" and (config.rescale, config.weights) != ("lazy", "held"),
            "supports rs only with lazy and without double; lazy",
        ),
        (config.weights == "double" and config.rescale != "lazy", "supports double weights only with lazy; lazy"),
    )
    return next((f"has the order ws, which {said}" for wrong, said in whys if wrong), None)


def _registers(config: SparseConfig, shape: Shape) -> str | None:
    if config.order != "ws":
        return None
    # Output, scores, weights as an operand (double: of two tiles), queries (rs), and about thirty for rows and sizes.
    scores = 2.0 if config.weights == "double" else 1.5
    queries = shape.columns // 4 if config.scores == "rs" else 0
    need = round((shape.columns + config.block_n * scores) / 2) + queries + 32
    if need <= config.consumer_registers:
        return None
    return f"takes about {need} registers a thread, of {config.consumer_registers} available; fewer programs or keys"


def _shared_memory(config: SparseConfig, shape: Shape) -> str | None:
    if config.order != "ws":
        return None
    have, room = shared_bytes(config, shape) + 1024, 228 * 1024 // config.programs - 1024
    return (
        f"takes {have // 1024} KiB of shared memory, of {room // 1024} available; fewer stages" if have > room else None
    )


RULES: dict[str, Callable[[SparseConfig, Shape], str | None]] = {
    "blocks": _blocks,
    "warpgroups": _hopper,
    "registers": _registers,
    "shared-memory": _shared_memory,
}
"Rules by name: each returns what is wrong with a configuration, or None."


def fault(config: SparseConfig, shape: Shape) -> tuple[str, str] | None:
    """The first rule that a configuration breaks, and its message; None for a valid one."""
    return next(((name, said) for name, rule in RULES.items() if (said := rule(config, shape)) is not None), None)


def space(shape: Shape) -> list[SparseConfig]:
    """All valid configurations for a shape, in a fixed order."""
    tiles = list(product((64, 128), (64, 128)))
    ws = (
        SparseConfig(
            block_m=m,
            block_n=n,
            warps=m // 16,
            stages=stages,
            order="ws",
            rings=rings,
            rescale=rescale,
            weights=weights,
            scores=scores,
            programs=programs,
        )
        for m, n, stages, rings, rescale, weights, scores, programs in product(
            (64, 128, 192, 256),
            (64, 128),
            (2, 3, 4, 5, 6),
            ("even", "deep", "joint"),
            ("eager", "lazy"),
            ("held", "double"),
            ("ss", "rs"),
            (1, 2, 3),
        )
    )
    plain = (
        SparseConfig(block_m=m, block_n=n, warps=warps, stages=stages)
        for (m, n), warps, stages in product(tiles, (4, 8), (2, 3, 4))
    )
    return [config for config in (*ws, *plain) if fault(config, shape) is None]


def default_config(shape: Shape, *, described: bool = True) -> SparseConfig:
    """Tuned default.

    Args:
        shape: dims, blocks and card; capability (0, 0) is the interpreter.
        described: whether tensor maps can describe the tensors; otherwise the Hopper path is not used.
    """
    return TABLE.first(
        "forward",
        SparseConfig,
        cards=shape.capability[0],
        item_bytes=shape.item_bytes,
        dim=shape.dim,
        block_q=shape.block_q,
        block_k=shape.block_k,
        also=lambda config: config.order == "plain" or (described and _hopper(config, shape) is None),
    )


FORWARD = Forward(SparseConfig, space, fault, default_config)
FAMILY = Family((FORWARD,))
