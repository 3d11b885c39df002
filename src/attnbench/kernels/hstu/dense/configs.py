"""Launch configurations of the dense HSTU kernels: tiles, warps, stages, code paths, and the tuned defaults.

The defaults are rows of ``configs.toml`` beside this file; the first row that matches is used.  Those of the Hopper
kernels have tables of their own, because these kernels do not support every problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from attnbench.kernels.shared.configs import Defaults, LaunchConfig, Spelled
from attnbench.kernels.shared.tiling import Grid

LARGEST_PARTS = 1024
"Most parts that keys are split into."
TABLE = Defaults(Path(__file__).with_name("configs.toml"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tiles(LaunchConfig):
    block_m: Annotated[int, Spelled("{}")]
    "rows of a tile"
    block_n: Annotated[int, Spelled("x{}")]
    "keys of a tile"
    warps: Annotated[int, Spelled("w{}")]
    stages: Annotated[int, Spelled("s{}")]
    "pipeline stages: tiles of keys (of rows, for dK and dV) in flight"
    masked_stages: Annotated[int, Spelled("-masked_stages{}")] = 1
    "the same for masked tiles; more stages take more registers"
    loads: Annotated[str, Spelled("-loads{}", ("pointer", "tma"))] = "pointer"
    "pointer, or tma: whole tiles by the tensor memory accelerator (sm_90 and later; elsewhere pointer)"
    registers: Annotated[int | None, Spelled("-registers{}")] = None
    "limit per thread, to fit more programs on an SM; None: the compiler's choice"
    silu: Annotated[str, Spelled("-{}", ("tanh", "exp"))] = "tanh"
    "tanh: one instruction of NVIDIA cards; exp: by an exponential, on any card"
    precision: Annotated[str, Spelled("-{}", ("ieee", "tf32x3", "tf32"))] = "ieee"
    "for fp32 products only: ieee, tf32x3, tf32"
    section_mib: Annotated[float, Spelled("-section_mib{}")] = 24.0
    "memory that consecutive programs share in the L2"

    def flags(self) -> dict[str, Any]:
        """Compile-time constants of a kernel that come from the configuration."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "APPROXIMATE": self.silu == "tanh",
            "PRECISION": self.precision,
            "MASKED_STAGES": self.masked_stages,
        }

    def options(self) -> dict[str, Any]:
        """Compiler options of a kernel."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages}
        return options | ({"maxnreg": self.registers} if self.registers else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(_Tiles):
    """Launch configuration of the forward kernel."""

    EXAMPLE: ClassVar[str] = "128x64w8s3-ahead"

    order: Annotated[str, Spelled("-{}", ("plain", "ahead", "ws"), far=3)] = "plain"
    """ahead: a tile's scores are computed before the previous tile's product with values, which then overlaps with SiLU;
    ws: the same, with a producer warp for consumer warpgroups of 64 rows (sm_90), and a dynamic tile scheduler"""
    parts: Annotated[int | None, Spelled("-parts{}", range(1, LARGEST_PARTS + 1))] = None
    "parts that keys are split into, each a work item (order ws); None: what fills the card, if queries have a cache"

    @property
    def hopper(self) -> bool:
        """Whether it is for the warp-specialized kernel in hopper.forward."""
        return self.order == "ws"

    def hopper_bytes(self, block_d: int, block_v: int, *, q_stages: int = 1) -> int:
        """Shared memory of that kernel for tiles of 16-bit elements with so many columns, without its barriers.

        Values have one stage more than keys, because they are needed one step longer.  An output with as many columns as the
        queries is stored through their buffer.
        """
        keys = self.block_n * (self.stages * block_d + (self.stages + 1) * block_v)
        return 2 * (keys + self.block_m * (q_stages * block_d + (block_v if block_v != block_d else 0)))

    def hopper_flags(self, block_d: int, block_v: int) -> dict[str, Any]:
        """Compile-time constants of that kernel that come from the configuration."""
        ahead = self.hopper_bytes(block_d, block_v, q_stages=2) <= HOPPER_SHARED_BYTES
        return {
            "BLOCK_N": self.block_n,
            "BLOCK_V": block_v,
            "STAGES": self.stages,
            "ROOM": 2 if ahead else 1,
            "GROUPS": self.block_m // 64,
            "APPROXIMATE": self.silu == "tanh",
            "REGISTERS": WARPGROUPS[self.warps],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnConfig(_Tiles):
    """Launch configuration of the backward kernel that loops over the rows of a tile of keys, for dK and dV."""

    EXAMPLE: ClassVar[str] = "64x128w8s2-ws"

    atomic: bool = False
    "also accumulate dQ in fp32 by atomics: one pass over the products, not reproducible; not part of the name"
    order: Annotated[str, Spelled("-{}", ("plain", "ws"), far=3)] = "plain"
    "ws: the kernel of hopper.backward (sm_90), a producer warp and two consumer warpgroups of 64 keys"
    split: Annotated[bool, Spelled("-{}", words={True: "split"})] = False
    "compute dV in a launch of its own, where registers cannot hold dK and dV together; takes one more product"
    lag: Annotated[bool, Spelled("-{}", words={True: "lag"}, far=3)] = False
    "compute a step's dQ in the next step (order ws, up to 128 dims): the consumers do not wait for each other's dS"
    sums: Annotated[str, Spelled("-{}", ("staged", "carried"), far=3)] = "staged"
    """how the order ws over 128 dims adds dQ to its sums; staged: by TMA, through shared memory; carried: by atomics from
    registers, half of it in the next step, and dO has as many stages as Q"""
    serial: Annotated[bool, Spelled("-{}", words={True: "serial"}, far=3)] = False
    """sum dQ by a serial reduction (order ws, up to 128 dims): a program does all key tiles of a (sequence, head), one after
    another, and rounds dQ itself; nothing is cleared"""

    @property
    def hopper(self) -> bool:
        """Whether it is for the warp-specialized kernel in hopper.backward."""
        return self.order == "ws"

    def key_stages(self, attn_dim: int, linear_dim: int) -> int:
        """Key tiles of a program in shared memory: with serial the next one is loaded early where there is room."""
        return 2 if self.serial and max(attn_dim, linear_dim) <= 64 else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RowConfig(_Tiles):
    """Launch configuration of the backward kernel that loops over the keys of a tile of rows, for dQ alone."""

    EXAMPLE: ClassVar[str] = "128x64w8s2"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """Launch configuration of the backward: the column kernel, and the row kernel unless atomics accumulate dQ."""

    columns: ColumnConfig
    rows: RowConfig | None
    "None: atomics accumulate dQ"

    @property
    def deterministic(self) -> bool:
        """Whether every sum has a fixed order."""
        return not self.columns.atomic or self.columns.serial


WARPGROUPS = {8: 240, 12: 160}
"Consumer warps of the Hopper forward, and the registers of each of their threads."
HOPPER_SHARED_BYTES = 227 * 1024 - 1024
"Shared memory of a program on sm_90 (CUDA programming guide, compute capabilities), minus room for barriers."


@lru_cache(maxsize=256)  # configurations and dims, of which a program has few
def hopper_fault(
    config: ForwardConfig, *, capability: tuple[int, int] | None, item_bytes: int, attn_dim: int, linear_dim: int
) -> str | None:
    """Why the Hopper forward cannot be launched this way, as words after the configuration's name; None if it can.

    Args:
        config: with the order ws.
        capability: of the card; None: not checked.
        item_bytes: bytes of an element.
        attn_dim: of queries and keys.
        linear_dim: of values.
    """
    block_d, block_v = (max(16, 1 << (dim - 1).bit_length()) for dim in (attn_dim, linear_dim))
    shared = config.hopper_bytes(block_d, block_v)
    odd = [dim for dim in (attn_dim, linear_dim) if dim * item_bytes % 16]
    for wrong, said in (
        (capability not in ((9, 0), None), f"is for sm_90 alone, not sm_{''.join(map(str, capability or ()))}"),
        (item_bytes != 2, "needs 16-bit inputs; bf16 or fp16"),
        (
            config.warps not in WARPGROUPS or config.block_m != 16 * config.warps,
            f"has {config.block_m} rows and {config.warps} warps; 128 and 8, or 192 and 12",
        ),
        (config.block_n not in (32, 64, 128), f"has tiles of {config.block_n} keys; 32, 64 or 128"),
        (config.stages < 1, "has no stage; at least 1"),
        (
            (config.registers, config.masked_stages) != (None, 1),
            "does not support registers and masked_stages; without both",
        ),
        (bool(odd), f"loads by tensor maps; rows of {odd and odd[0]} dims are not a multiple of 16 bytes"),
        (
            shared > HOPPER_SHARED_BYTES,
            f"takes {shared // 1024} KiB of shared memory; at most {HOPPER_SHARED_BYTES // 1024}",
        ),
    ):
        if wrong:
            return said
    return None


def hopper_columns_fault(
    config: ColumnConfig, *, capability: tuple[int, int] | None, item_bytes: int, attn_dim: int, linear_dim: int
) -> str | None:
    """Why the Hopper backward cannot be launched this way; arguments as in `hopper_fault`, with the order ws."""
    wide = max(attn_dim, linear_dim) > 128
    block_d, block_v = (max(128 if wide else 32, 1 << (dim - 1).bit_length()) for dim in (attn_dim, linear_dim))
    keys = 64 if wide else 128
    staged = config.sums == "staged"
    # Keys and values; queries and dO, one stage of dO above 128 dims; dS twice, and above 128 dims A; parts of dQ, if
    # staged, and rounded ones.
    held = (
        2 * keys * (block_d + block_v) * config.key_stages(attn_dim, linear_dim)
        + 2 * config.stages * 64 * block_d
        + 2 * 2 * 128 * 64
    )
    held += 2 * 64 * block_d * config.serial
    held += 2 * (1 if wide and staged else config.stages) * 64 * block_v + 4 * 64 * (128 if wide else block_d) * staged
    odd = [dim for dim in (attn_dim, linear_dim) if dim * item_bytes % 16]
    for wrong, said in (
        (capability not in ((9, 0), None), f"is for sm_90 alone, not sm_{''.join(map(str, capability or ()))}"),
        (item_bytes != 2, "needs 16-bit inputs; bf16 or fp16"),
        (
            (config.block_m, config.block_n, config.warps) != (64, keys, 8),
            f"has {config.block_m}x{config.block_n} tiles and {config.warps} warps; 64x{keys} and 8",
        ),
        (not config.atomic or config.split, "computes dQ together with dK and dV; atomic and no split"),
        (config.lag and wide, "computes dQ in its own step over 128 dims; without lag"),
        (config.serial and wide, "has one key tile a program over 128 dims; without serial"),
        (not staged and not wide, f"adds dQ by TMA up to 128 dims; without {config.sums}"),
        (
            (config.registers, config.masked_stages) != (None, 1),
            "does not support registers and masked_stages; without both",
        ),
        (bool(odd), f"loads by tensor maps; rows of {odd and odd[0]} dims are not a multiple of 16 bytes"),
        (
            held > HOPPER_SHARED_BYTES,
            f"takes {held // 1024} KiB of shared memory; at most {HOPPER_SHARED_BYTES // 1024}",
        ),
    ):
        if wrong:
            return said
    return None


def triangle_grid(
    pairs: int, seqlen: int, *, causal: bool, cached: bool, windowed: bool, processors: int = 132
) -> Grid | None:
    """Query tiles whose keys grow from none to all of a sequence; None for other masks, whose tiles take equal times.

    Few such tiles take as long as the longest of them, which smaller tiles shorten.  Few equal tiles take whole rounds
    instead, of which larger tiles may need fewer.

    Args:
        pairs: heads of all sequences.
        seqlen: most rows of a sequence.
        causal: whether a row sees no later one.
        cached: whether queries are only the last rows of a sequence.
        windowed: whether a row sees only so many rows before it.
        processors: SMs of the card.
    """
    return Grid(pairs, seqlen, processors) if causal and not cached and not windowed else None


def forward_config(capability: tuple[int, int], item_bytes: int, dim: int, seqlen: int) -> ForwardConfig:
    """Tuned default of the portable forward.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: of an element.
        dim: the larger of attention and linear dim.
        seqlen: most rows of a sequence.
    """
    return TABLE.first("forward", ForwardConfig, **_asked(capability, item_bytes, dim, seqlen))


def backward_config(
    capability: tuple[int, int], item_bytes: int, dim: int, seqlen: int, *, deterministic: bool
) -> BackwardConfig:
    """Tuned default of the portable backward; arguments as in `forward_config`."""
    asked = _asked(capability, item_bytes, dim, seqlen)
    if not deterministic:
        return BackwardConfig(columns=_atomic(TABLE.first("atomic", ColumnConfig, **asked)), rows=None)
    return BackwardConfig(
        columns=TABLE.first("columns", ColumnConfig, **asked), rows=TABLE.first("rows", RowConfig, **asked)
    )


def hopper_forward_config(
    capability: tuple[int, int], item_bytes: int, attn_dim: int, linear_dim: int, seqlen: int, grid: Grid | None = None
) -> ForwardConfig | None:
    """Tuned default of the Hopper forward; None if that kernel does not support it.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: of an element.
        attn_dim: of queries and keys.
        linear_dim: of values.
        seqlen: most rows of a sequence.
        grid: as `triangle_grid`.
    """
    if capability != (9, 0) or item_bytes != 2:
        return None
    asked = _asked(capability, item_bytes, max(attn_dim, linear_dim), seqlen)
    found = TABLE.first("hopper_forward", ForwardConfig, grid=grid, **asked)
    fault = hopper_fault(found, capability=capability, item_bytes=item_bytes, attn_dim=attn_dim, linear_dim=linear_dim)
    return None if fault else found


def hopper_columns_config(
    capability: tuple[int, int], item_bytes: int, attn_dim: int, linear_dim: int, seqlen: int, pairs: int = 1
) -> ColumnConfig | None:
    """Tuned default of the Hopper backward, which uses atomics; arguments as in `hopper_forward_config`.

    `pairs` are the heads of all sequences.
    """
    if capability != (9, 0) or item_bytes != 2:
        return None
    asked = _asked(capability, item_bytes, max(attn_dim, linear_dim), seqlen)
    found = _atomic(TABLE.first("hopper_atomic", ColumnConfig, pairs=pairs, **asked))
    fault = hopper_columns_fault(
        found, capability=capability, item_bytes=item_bytes, attn_dim=attn_dim, linear_dim=linear_dim
    )
    return None if fault else found


@cache  # as many as the table has rows
def _atomic(config: ColumnConfig) -> ColumnConfig:
    return replace(config, atomic=True)


def _asked(capability: tuple[int, int], item_bytes: int, dim: int, seqlen: int) -> dict[str, Any]:
    return {"cards": capability[0], "item_bytes": item_bytes, "dim": dim, "seqlen": seqlen}
