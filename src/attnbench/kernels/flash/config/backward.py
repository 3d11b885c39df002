"""Launch configuration of the flash backward: tiles, warps, stages, code path; its space and its tuned defaults.

    b64x128w8s3-atomic-tma             one kernel: 64 rows by 128 keys, 8 warps, 3 stages, dQ by fp32 atomics
    b64x128w8s3-r128x64w8s2-tma-late   deterministic: a second kernel for dQ, with the tiles after the r
    b64x128w8s2-atomic-tma-ws          the Hopper kernel: a producer warp, two consumer warpgroups of 64 keys each
    b64x64w8s2-atomic-tma-ws           the Hopper kernel over 128 dims: two warpgroups share 64 keys

The defaults are rows of ``backward.toml`` beside this file; the first row that matches is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

from attnbench.kernels.shared.configs import Defaults, LaunchConfig, Spelled, nearest

__all__ = [
    "TABLE",
    "WORDS",
    "BackwardConfig",
    "Tiles",
    "backward_config",
    "backward_space",
    "nearest_backward",
    "parse_backward",
    "why_not",
]

SECTION_MIB = 24
TABLE = Defaults(Path(__file__).with_name("backward.toml"))


@dataclass(frozen=True, slots=True)
class Tiles(LaunchConfig):
    """Tiles, warps and stages of one kernel."""

    EXAMPLE: ClassVar[str] = "64x128w8s3"

    block_m: Annotated[int, Spelled("{}")]
    "rows of a tile"
    block_n: Annotated[int, Spelled("x{}")]
    "keys of a tile"
    warps: Annotated[int, Spelled("w{}")]
    stages: Annotated[int, Spelled("s{}")]
    "pipeline stages: tiles of rows in flight in the kernel for dK and dV, tiles of keys in the kernel for dQ"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(LaunchConfig):
    """Launch configuration of the backward."""

    EXAMPLE: ClassVar[str] = "b64x128w8s3-atomic-tma or b64x128w8s3-r128x64w8s2-tma"

    columns: Annotated[Tiles, Spelled("b{}")]
    "tiles of the kernel for dK and dV, which loops over the rows that see a tile of keys"
    rows: Annotated[Tiles | None, Spelled("-r{}", none="atomic", far=3)] = None
    "tiles of the kernel for dQ, which loops over the keys of a tile of rows; None: the first kernel adds dQ by atomics"
    loads: Annotated[str, Spelled("-{}", ("pointer", "tma"))] = "pointer"
    "pointer, or tma: by the tensor memory accelerator (sm_90 and later; pointer for tensors it cannot read)"
    order: Annotated[str, Spelled("-{}", ("early", "late", "ahead", "ws"), far=3)] = "early"
    """whether dO Vᵀ is issued before (early) or after (late) the exponentials; ahead: the next tile's scores are issued
    before dK of this tile; ws: hopper.backward (above 128 dims backward_wide), a producer warp and two consumer warpgroups"""
    mask: Annotated[str, Spelled("-{}", ("apart", "fused"))] = "apart"
    "for columns; apart: masked tiles in a loop of their own; fused: all tiles in one loop (dense tensors by tma only)"
    add: Annotated[str, Spelled("-{}", ("last", "beside"))] = "last"
    "when a part of dQ is added by atomics; beside: it is computed before dK, and added while the dK product runs"
    sums: Annotated[str, Spelled("-{}", ("staged", "direct", "carried"))] = "staged"
    """how `ws` over 128 dims adds dQ to its sums; staged: by TMA, through shared memory; direct: by atomics from registers,
    and dO has as many stages as Q; carried: likewise, half of it in the next step"""
    masked_stages: Annotated[int, Spelled("-m{}")] = 1
    "tiles in flight in the loop of masked tiles; more stages take more registers"
    registers: Annotated[int | None, Spelled("-g{}")] = None
    "limit per thread, to fit more programs on an SM; None: the compiler's choice"
    section_mib: Annotated[int, Spelled("-l{}")] = SECTION_MIB
    "memory that consecutive programs share in the L2"
    precision: Annotated[str, Spelled("-{}", ("ieee", "tf32x3", "tf32"))] = "ieee"
    "for fp32 products only: ieee, tf32x3, tf32"

    @property
    def deterministic(self) -> bool:
        """Whether every sum has a fixed order."""
        return self.rows is not None

    def options(self, tiles: Tiles) -> dict[str, Any]:
        """Compiler options of a kernel."""
        options: dict[str, Any] = {"num_warps": tiles.warps, "num_stages": tiles.stages}
        return options | ({"maxnreg": self.registers} if self.registers else {})

    def columns_of_sums(self, dim: int) -> int:
        """Columns of the fp32 workspace for dQ; with the order `ws` its rows are stored in whole tiles."""
        if self.order != "ws":
            return dim
        return 256 if self.columns.block_n == 64 else 8192 // self.columns.block_m

    @property
    def base_2(self) -> bool:
        """Whether the workspace holds -lse log2(e), not -lse / scale: `ws` up to 64 dims, where a step has 128 rows."""
        return self.order == "ws" and self.columns.block_m == 128

    def flags(self, tiles: Tiles) -> dict[str, Any]:
        """Compile-time constants of a kernel that come from its tiles."""
        return {
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
            "PRECISION": self.precision,
            "MASKED_STAGES": self.masked_stages,
        }

    @property
    def pad(self) -> int:
        """Each sequence begins in the workspace at a multiple of this many rows: whole tiles of both kernels."""
        return max(self.columns.block_m, self.rows.block_m if self.rows else 0)


parse_backward = BackwardConfig.parse
WORDS = {name: tuple(column.spelled.accepted) for name, column in BackwardConfig.table().items() if column.kind is str}
"""Values of the fields that are spelled as words, the default first."""


@lru_cache(maxsize=1024)  # a call with a new shape asks it of one of a few defaults
def why_not(config: BackwardConfig, capability: tuple[int, int], item_bytes: int, dim: int, dim_v: int) -> str | None:
    """Why a configuration is not valid, beginning with the name of the rule; None if it is.

    Args:
        config: the configuration.
        capability: of the card; (0, 0) is the interpreter, which has no limits.
        item_bytes: bytes of an element.
        dim: of queries and keys.
        dim_v: of values.
    """
    for tiles in filter(None, (config.columns, config.rows)):
        for name, value, accepted in (
            ("block_m", tiles.block_m, (16, 32, 64, 128)),
            ("block_n", tiles.block_n, (16, 32, 64, 128)),
            ("warps", tiles.warps, (4, 8)),
            ("stages", tiles.stages, (1, 2, 3, 4)),
        ):
            if value not in accepted:
                return f"tile: {name}={value}; one of {', '.join(map(str, accepted))}"
    if config.sums != "staged" and (config.order != "ws" or max(dim, dim_v) <= 128):
        return f"sums: {config.sums} requires ws and over 128 dims"
    if config.order == "ws":
        return _not_hopper(config, capability, item_bytes, dim, dim_v)
    if config.loads == "tma" and 0 < capability[0] < 9:
        return "tma: only sm_90 and later have it"
    if config.mask == "fused" and config.loads != "tma":
        return "mask: fused requires tma"
    if config.add == "beside" and config.deterministic:
        return "add: beside requires atomics"
    if (config.precision != "ieee") and item_bytes == 2:
        return f"precision: {config.precision} is for fp32 inputs only"
    if config.registers is not None and not 32 <= config.registers <= 255:
        return f"registers: a limit of {config.registers} per thread; from 32 to 255"
    if not 1 <= config.masked_stages <= 4 or config.section_mib < 1:
        return "stages: masked_stages from 1 to 4, section_mib from 1"
    if capability[0] == 9 and item_bytes == 2 and (narrow := _narrow(config)):
        return f"warpgroup: {narrow} is too small for warpgroup products; at least 64"
    return _too_large(config, capability, item_bytes, _padded(dim), _padded(dim_v)) if capability[0] else None


def _not_hopper(
    config: BackwardConfig, capability: tuple[int, int], item_bytes: int, dim: int, dim_v: int
) -> str | None:
    """Why a configuration of the order `ws` is invalid, at all or for this card or these dims."""
    tiles, widest = config.columns, max(dim, dim_v)
    if capability != (9, 0):
        return f"ws: sm_{capability[0]}{capability[1]} has no warpgroup products; sm_90"
    if item_bytes != 2 or widest > 256 or dim % 8 or dim_v % 8:
        return f"ws: {item_bytes}-byte elements of {dim} and {dim_v} dims; 2 bytes, multiples of 8 up to 256"
    plain = BackwardConfig(columns=tiles, loads="tma", order="ws", section_mib=config.section_mib, sums=config.sums)
    if config != plain or config.section_mib < 1:
        return f"ws: loads, mask, add, registers and rows cannot be chosen; {replace(plain, section_mib=SECTION_MIB).short}"
    rows, keys, fewest = (128, 128, 2) if widest <= 64 else (64, 128, 2) if widest <= 128 else (64, 64, 1)
    if (tiles.block_m, tiles.block_n, tiles.warps) != (rows, keys, 8) or tiles.stages not in (fewest, fewest + 1):
        return f"ws: {tiles.short} is not supported at {widest} dims; {rows}x{keys}w8s{fewest} or s{fewest + 1}"
    if widest > 128:
        return None
    # Keys and values, tiles of rows, dS twice, half of dQ for each warpgroup, row statistics and barriers.
    columns = 64 if dim <= 64 else 128
    taken = 4 * columns * (128 + tiles.stages * rows) + 4 * 128 * rows + 4 * columns * rows
    taken += 9 * rows * tiles.stages + 1024
    return f"shared memory: columns take {taken} bytes; at most {227 * 1024}" if taken > 227 * 1024 else None


def _narrow(config: BackwardConfig) -> str | None:
    """The side of a tile that is below the 64 rows of a warpgroup product of sm_90."""
    products = [("block_n", config.columns.block_n)]
    products += [("block_m", config.columns.block_m if config.rows is None else config.rows.block_m)]
    return next((f"{name}={value}" for name, value in products if value < 64), None)


def _too_large(
    config: BackwardConfig, capability: tuple[int, int], item_bytes: int, dim: int, dim_v: int
) -> str | None:
    """Estimate registers and shared memory from what must be held; the limits leave room for what the compiler adds."""
    shared = {8: {0: 163, 7: 163}.get(capability[1], 99), 12: 99}.get(capability[0], 227) * 1024
    limit = min(200, config.registers or 255)
    for name, tiles in (("columns", config.columns), ("rows", config.rows)):
        if tiles is None:
            continue
        tile, resident, streamed = tiles.block_m * tiles.block_n, tiles.block_n, tiles.block_m
        held = tiles.block_n * (dim + dim_v)
        if name == "rows":
            resident, streamed, held = tiles.block_m, tiles.block_n, tiles.block_m * dim
        held = (held + 2 * tile) // (32 * tiles.warps)
        if held > limit:
            return f"registers: sums and scores of {name} take {held} a thread; at most {limit}"
        streams = dim + dim_v + (dim if name == "columns" and config.order == "ahead" else 0)
        taken = item_bytes * (resident * (dim + dim_v) + tiles.stages * streamed * streams + tile)
        # TMA adds to global memory from shared memory.
        if name == "columns" and config.rows is None and config.loads == "tma" and tiles.stages > 1:
            taken += 4 * tiles.block_m * dim
        if taken > shared:
            return f"shared memory: {name} take {taken} bytes; at most {shared}"
    return None


def backward_space(
    capability: tuple[int, int], item_bytes: int, dim: int, dim_v: int, *, deterministic: bool = False
) -> Iterator[BackwardConfig]:
    """Every configuration in the space, pruned by `why_not`; arguments as for it.

    The two kernels of a deterministic backward are independent, so each is varied with the other at its default.
    """
    given = capability, item_bytes, max(dim, dim_v)
    default = backward_config(*given, deterministic=deterministic)
    shipped = backward_config(*given, deterministic=deterministic, hopper=not (dim % 8 or dim_v % 8))
    every = [Tiles(*values) for values in product((32, 64, 128), (32, 64, 128), (4, 8), (1, 2, 3))]
    loads = WORDS["loads"] if capability[0] not in range(1, 9) else ("pointer",)
    orders = WORDS["order"][:3]
    hopper = [
        BackwardConfig(columns=Tiles(rows, keys, 8, stages), loads="tma", order="ws", sums=sums, section_mib=mib)
        for rows, keys, stages, sums, mib in product(
            (64, 128), (64, 128), (1, 2, 3), WORDS["sums"], (SECTION_MIB, 8, 1000)
        )
    ]
    found = [] if deterministic else hopper
    found += [
        replace(default, columns=tiles, order=order, loads=load, mask=mask, add=add)
        for tiles, order, load, mask, add in product(every, orders, loads, WORDS["mask"], WORDS["add"])
    ]
    found += [replace(default, masked_stages=2), *(replace(default, section_mib=mib) for mib in (8, 1000))]
    if deterministic:
        found += [replace(default, rows=tiles) for tiles in every]
    for config in dict.fromkeys([shipped, default, *found]):
        if config in (shipped, default) or why_not(config, capability, item_bytes, dim, dim_v) is None:
            yield config


def nearest_backward(text: str, capability: tuple[int, int], item_bytes: int, dim: int, dim_v: int) -> str:
    """The valid short form most similar to a text, or to its configuration if it parses; arguments as for `why_not`."""
    there = [
        config
        for deterministic in (False, True)
        for config in backward_space(capability, item_bytes, dim, dim_v, deterministic=deterministic)
    ]
    try:
        wanted = parse_backward(text, spelled=False)
    except ValueError:
        return nearest(text, [config.short for config in there])
    if why_not(wanted, capability, item_bytes, dim, dim_v) is None:
        return wanted.short
    return min(there, key=wanted.distance).short


def backward_config(
    capability: tuple[int, int],
    item_bytes: int,
    dim: int,
    *,
    deterministic: bool = False,
    packed: bool = False,
    hopper: bool = False,
) -> BackwardConfig:
    """Tuned default.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: bytes of an element.
        dim: the larger of the head dims.
        deterministic: bitwise reproducible, with seven products instead of five.
        packed: sequences are packed one after another.
        hopper: whether hopper.backward supports the tensors; otherwise the order `ws` is not used.
    """
    return TABLE.first(
        "backward",
        BackwardConfig,
        cards=capability[0],
        item_bytes=item_bytes,
        dim=dim,
        packed=packed,
        also=lambda config: config.deterministic == deterministic and (hopper or config.order != "ws"),
    )


def _padded(dim: int) -> int:
    return max(16, 1 << (dim - 1).bit_length())
