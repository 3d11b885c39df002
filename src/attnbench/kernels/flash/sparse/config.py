"""Launch configuration of the block-sparse forward: tiles, warps, stages and code path.

Short form, what differs from the defaults spelled out:  ``m128n128w8s2-ws-deep-lazy``
Which of them a case has says `space`, and why not `RULES`; tuned defaults are rows of ``defaults.toml``.  Imports
without torch and Triton.
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
"Shared memory of a program on sm_90; of a multiprocessor it is 228 KiB, 1 KiB of it a program's own."


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseConfig(LaunchConfig):
    """Launch configuration of the kernel; precision, dims and blocks belong to the case."""

    EXAMPLE: ClassVar[str] = "m128n128w8s2-ws-deep-lazy"

    block_m: Annotated[int, Spelled("m{}", (64, 128, 192, 256))]
    "queries of a tile: those of a block, half of them, or of several blocks, whose keys are loaded once (ws)"
    block_n: Annotated[int, Spelled("n{}", (32, 64, 128))]
    "keys of a tile: those of a block, or a part of them"
    warps: Annotated[int, Spelled("w{}", (4, 8, 12, 16))]
    "of the products"
    stages: Annotated[int, Spelled("s{}", (1, 2, 3, 4, 5, 6))]
    "tiles of keys and values in flight"
    order: Annotated[str, Spelled("-{}", ("plain", "ws"), far=3)] = "plain"
    "plain: the portable kernel; ws: the Hopper kernel, a producer warp that loads for warpgroups of 64 rows each"
    rings: Annotated[str, Spelled("-{}", ("even", "deep"))] = "even"
    "even: as many tiles of keys in flight as of values; deep: one of keys more (ws)"
    rescale: Annotated[str, Spelled("-{}", ("eager", "lazy"))] = "eager"
    "when the output takes a softmax's factor: eager: as soon as it is known; lazy: beside the next scores (ws)"
    weights: Annotated[str, Spelled("-{}", ("held", "double"))] = "held"
    "double: the weights of two tiles have registers, as of the dense forward (ws, with lazy)"
    programs: Annotated[int, Spelled("-x{}", (1, 2, 3))] = 1
    "programs of a multiprocessor at a time (ws)"

    def __post_init__(self) -> None:
        LaunchConfig.__post_init__(self)
        if self.order == "plain" and (self.rings, self.rescale, self.weights, self.programs) != (
            "even",
            "eager",
            "held",
            1,
        ):
            raise ValueError("order=plain has no deep, lazy, double or x…; without, or order=ws")

    @property
    def groups(self) -> int:
        """Warpgroups of 64 rows each (ws)."""
        return self.block_m // 64

    @property
    def key_stages(self) -> int:
        """Tiles of keys in flight (ws)."""
        return self.stages + (self.rings == "deep")

    def unit(self, block_q: int) -> int:
        """Queries that have a list: those of a block, or of half of one where a tile has one and a half."""
        return block_q if self.block_m % block_q == 0 or block_q % self.block_m == 0 else 64

    def share(self, block_q: int) -> int:
        """How many units a work item takes together."""
        return max(1, self.block_m // self.unit(block_q))

    @property
    def registers(self) -> int:
        """Registers of a thread as a ws program is launched; a multiple of 8 that `programs` of them have room for."""
        return 65536 // (self.programs * 128 * (self.groups + 1)) // 8 * 8

    @property
    def consumer_registers(self) -> int:
        """Registers of a thread that multiplies: what the producer's warps, of 24 each, leave."""
        return min(240, (self.registers * (self.groups + 1) - 24) // self.groups // 8 * 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What of a case and its card the rules ask for."""

    dim: int
    block_q: int = 128
    block_k: int = 128
    item_bytes: int = 2
    capability: tuple[int, int] = (9, 0)

    @property
    def columns(self) -> int:
        """Of a tile: a power of two, at least the 16 of a tensor core."""
        return max(16, 1 << (self.dim - 1).bit_length())


def query_tiles(config: SparseConfig, shape: Shape) -> int:
    """How many tiles of queries a ws program has room for: the next item's too, if that fits."""
    return 1 + (shared_bytes(config, shape, 2) <= SHARED_BYTES // config.programs - 2048)


def shared_bytes(config: SparseConfig, shape: Shape, tiles: int = 1) -> int:
    """Shared memory of a ws program with so many tiles of queries; barriers are less than 2 KiB beside them."""
    rows = (config.key_stages + config.stages) * config.block_n + tiles * config.block_m
    return rows * shape.columns * shape.item_bytes


def _blocks(config: SparseConfig, shape: Shape) -> str | None:
    form = config.order, config.rings, config.rescale, config.weights
    if config.block_m > shape.block_q and form != ("ws", "even", "lazy", "held"):
        return f"has tiles of several blocks of {shape.block_q} queries: ws, lazy, not deep or double; m{shape.block_q}"
    if shape.block_k % config.block_n:
        return f"has tiles of {config.block_n} keys, and blocks have {shape.block_k}; n{shape.block_k}"
    return None


def _hopper(config: SparseConfig, shape: Shape) -> str | None:
    if config.order != "ws":
        return None
    whys = (
        (shape.capability != (9, 0), f"is for sm_90, not sm_{shape.capability[0]}{shape.capability[1]}; plain"),
        (shape.item_bytes != 2, "multiplies 16-bit numbers; plain"),
        (
            shape.dim % 8 != 0 or shape.columns not in (64, 128),
            f"takes multiples of 8 from 40 to 128 dims, not {shape.dim}; plain",
        ),
        (config.warps != config.block_m // 16, "has 64 rows to four warps; such as m128w8"),
        (config.block_n < 64, "has tiles of 64 keys at least; n64"),
        (config.stages < 2, "reads a tile while it waits for the next; s2"),
        (config.weights == "double" and config.rescale != "lazy", "has double weights with lazy alone; lazy"),
    )
    return next((f"has the order ws, which {said}" for wrong, said in whys if wrong), None)


def _registers(config: SparseConfig, shape: Shape) -> str | None:
    if config.order != "ws":
        return None
    # Output, scores, weights as an operand, and some thirty for rows and sizes.
    scores = 2.0 if config.weights == "double" else 1.5
    need = round((shape.columns + config.block_n * scores) / 2) + 32
    if need <= config.consumer_registers:
        return None
    return f"takes about {need} registers a thread, and has {config.consumer_registers}; fewer programs or keys"


def _shared_memory(config: SparseConfig, shape: Shape) -> str | None:
    if config.order != "ws":
        return None
    have, room = shared_bytes(config, shape) + 1024, 228 * 1024 // config.programs - 1024
    return f"takes {have // 1024} KiB of shared memory, and has {room // 1024}; fewer stages" if have > room else None


RULES: dict[str, Callable[[SparseConfig, Shape], str | None]] = {
    "blocks": _blocks,
    "warpgroups": _hopper,
    "registers": _registers,
    "shared-memory": _shared_memory,
}
"Why a configuration is left out, by name: what it says is wrong with it, or None."


def fault(config: SparseConfig, shape: Shape) -> tuple[str, str] | None:
    """Name of the first rule that leaves a configuration out, and what it says; None of a valid one."""
    return next(((name, said) for name, rule in RULES.items() if (said := rule(config, shape)) is not None), None)


def space(shape: Shape) -> list[SparseConfig]:
    """Every valid configuration for a shape, in one order."""
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
            programs=programs,
        )
        for m, n, stages, rings, rescale, weights, programs in product(
            (64, 128, 192, 256),
            (64, 128),
            (2, 3, 4, 5, 6),
            ("even", "deep"),
            ("eager", "lazy"),
            ("held", "double"),
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
        described: tensor maps can describe the tensors; else none of the Hopper path.
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
