"""Launch configurations of the dense HSTU kernels: tiles, warps, stages, code paths, and the tuned defaults.

The defaults are data, in ``configs.toml`` beside this file: the first row that fits is taken.  Those of the kernels
for Hopper have tables of their own, for not every problem is one of these kernels'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from attnbench.kernels.shared.configs import Defaults, LaunchConfig, Spelled

LARGEST_PARTS = 1024
"That keys are split into."
TABLE = Defaults(Path(__file__).with_name("configs.toml"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tiles(LaunchConfig):
    block_m: Annotated[int, Spelled("{}")]
    "rows of a tile"
    block_n: Annotated[int, Spelled("x{}")]
    "keys of a tile"
    warps: Annotated[int, Spelled("w{}")]
    stages: Annotated[int, Spelled("s{}")]
    "tiles of keys (rows, in dK and dV) in flight"
    masked_stages: Annotated[int, Spelled("-masked_stages{}")] = 1
    "the same of the masked tiles; more of them are more registers"
    loads: Annotated[str, Spelled("-loads{}", ("pointer", "tma"))] = "pointer"
    "pointer, or tma: whole tiles by the tensor memory accelerator (sm_90 and later; elsewhere pointer)"
    registers: Annotated[int | None, Spelled("-registers{}")] = None
    "most of a thread, to have more programs on an SM; None: the compiler's choice"
    silu: Annotated[str, Spelled("-{}", ("tanh", "exp"))] = "tanh"
    "tanh: one instruction of an NVIDIA card; exp: by a plain exponential, anywhere"
    precision: Annotated[str, Spelled("-{}", ("ieee", "tf32x3", "tf32"))] = "ieee"
    "of fp32 products: ieee, tf32x3, tf32; 16-bit ones have no choice"
    section_mib: Annotated[float, Spelled("-section_mib{}")] = 24.0
    "programs next to one another share this much of the L2"

    def flags(self) -> dict[str, Any]:
        """What of the configuration is compiled into a kernel."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "APPROXIMATE": self.silu == "tanh",
            "PRECISION": self.precision,
            "MASKED_STAGES": self.masked_stages,
        }

    def options(self) -> dict[str, Any]:
        """Options of the compiler beside the kernel's arguments."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages}
        return options | ({"maxnreg": self.registers} if self.registers else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(_Tiles):
    """Launch configuration of the forward kernel."""

    EXAMPLE: ClassVar[str] = "128x64w8s3-ahead"

    order: Annotated[str, Spelled("-{}", ("plain", "ahead", "ws"), far=3)] = "plain"
    """ahead: the scores of a tile are there before the product with the last one's values, and SiLU runs beside that;
    ws: so too, while a warp of its own loads for warpgroups of 64 rows (sm_90), in programs that draw their jobs"""
    parts: Annotated[int | None, Spelled("-parts{}", range(1, LARGEST_PARTS + 1))] = None
    "that keys are split into, each a work item (order ws); None: what fills the card, where queries have a cache"

    @property
    def hopper(self) -> bool:
        """Whether it is of the kernel in hopper.forward, whose warps have jobs of their own."""
        return self.order == "ws"

    def hopper_bytes(self, block_d: int, block_v: int, *, q_stages: int = 1) -> int:
        """Shared memory of that kernel for tiles of so many columns, of 16-bit numbers; barriers beside it.

        Values are held a step longer than keys: a stage more.  Output of as many columns leaves from the queries'.
        """
        keys = self.block_n * (self.stages * block_d + (self.stages + 1) * block_v)
        return 2 * (keys + self.block_m * (q_stages * block_d + (block_v if block_v != block_d else 0)))

    def hopper_flags(self, block_d: int, block_v: int) -> dict[str, Any]:
        """What of the configuration is compiled into that kernel."""
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
    """Launch configuration of the backward kernel that takes a tile of keys through its rows."""

    EXAMPLE: ClassVar[str] = "64x128w8s2-ws"

    atomic: bool = False
    "dQ too, added up in fp32 by atomics: one pass over the products, another order of sums each time; not in the name"
    order: Annotated[str, Spelled("-{}", ("plain", "ws"), far=3)] = "plain"
    "ws: the kernel of hopper.backward (sm_90), where a warp of its own loads for two warpgroups of 64 keys"
    split: Annotated[bool, Spelled("-{}", words={True: "split"})] = False
    "dV in a launch of its own, for dims whose dK and dV do not fit the registers at once; one product more"

    @property
    def hopper(self) -> bool:
        """Whether it is of the kernel in hopper.backward, whose warps have jobs of their own."""
        return self.order == "ws"


@dataclass(frozen=True, kw_only=True, slots=True)
class RowConfig(_Tiles):
    """Launch configuration of the backward kernel that takes a tile of rows through its keys, for dQ alone."""

    EXAMPLE: ClassVar[str] = "128x64w8s2"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """Launch configuration of the backward: columns alone where these add up dQ by atomics, else columns and rows."""

    columns: ColumnConfig
    rows: RowConfig | None
    "None: dQ comes by atomics"

    @property
    def deterministic(self) -> bool:
        """Whether every sum has one order."""
        return not self.columns.atomic


WARPGROUPS = {8: 240, 12: 160}
"Warps beside the loader of the Hopper forward, and how many registers each thread of them has."
HOPPER_SHARED_BYTES = 227 * 1024 - 1024
"Shared memory of a program on sm_90 (CUDA programming guide, compute capabilities), less what barriers may take."


def hopper_fault(
    config: ForwardConfig, *, capability: tuple[int, int] | None, item_bytes: int, attn_dim: int, linear_dim: int
) -> str | None:
    """Why the Hopper forward cannot be launched so, behind the configuration's name; None where it can.

    Args:
        config: with the order ws.
        capability: of the card; None: not asked.
        item_bytes: of an element.
        attn_dim: of queries and keys.
        linear_dim: of values.
    """
    block_d, block_v = (max(16, 1 << (dim - 1).bit_length()) for dim in (attn_dim, linear_dim))
    shared = config.hopper_bytes(block_d, block_v)
    odd = [dim for dim in (attn_dim, linear_dim) if dim * item_bytes % 16]
    for wrong, said in (
        (capability not in ((9, 0), None), f"is for sm_90 alone, not sm_{''.join(map(str, capability or ()))}"),
        (item_bytes != 2, "multiplies 16-bit numbers; bf16 or fp16"),
        (
            config.warps not in WARPGROUPS or config.block_m != 16 * config.warps,
            f"has {config.block_m} rows and {config.warps} warps; 128 and 8, or 192 and 12",
        ),
        (config.block_n not in (32, 64, 128), f"has tiles of {config.block_n} keys; 32, 64 or 128"),
        (config.stages < 1, "has no stage; at least 1"),
        (
            (config.registers, config.masked_stages) != (None, 1),
            "has its own registers and masked tiles; neither given",
        ),
        (bool(odd), f"loads by tensor maps; rows of {odd and odd[0]} dims are no multiple of 16 bytes"),
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
    """Why the Hopper backward cannot be launched so; arguments as of `hopper_fault`, the order ws."""
    wide = max(attn_dim, linear_dim) > 128
    block_d, block_v = (max(128 if wide else 32, 1 << (dim - 1).bit_length()) for dim in (attn_dim, linear_dim))
    keys = 64 if wide else 128
    # Keys and values; queries and dO, of which a wide tile is alone; dS twice, and if wide A; parts of dQ.
    held = 2 * keys * (block_d + block_v) + 2 * config.stages * 64 * block_d + 2 * 2 * 128 * 64
    held += 2 * (1 if wide else config.stages) * 64 * block_v + 4 * 64 * (128 if wide else block_d)
    odd = [dim for dim in (attn_dim, linear_dim) if dim * item_bytes % 16]
    for wrong, said in (
        (capability not in ((9, 0), None), f"is for sm_90 alone, not sm_{''.join(map(str, capability or ()))}"),
        (item_bytes != 2, "multiplies 16-bit numbers; bf16 or fp16"),
        (
            (config.block_m, config.block_n, config.warps) != (64, keys, 8),
            f"has {config.block_m}x{config.block_n} tiles and {config.warps} warps; 64x{keys} and 8",
        ),
        (not config.atomic or config.split, "adds up dQ beside dK and dV; atomic and no split"),
        (
            (config.registers, config.masked_stages) != (None, 1),
            "has its own registers and masked tiles; neither given",
        ),
        (bool(odd), f"loads by tensor maps; rows of {odd and odd[0]} dims are no multiple of 16 bytes"),
        (
            held > HOPPER_SHARED_BYTES,
            f"takes {held // 1024} KiB of shared memory; at most {HOPPER_SHARED_BYTES // 1024}",
        ),
    ):
        if wrong:
            return said
    return None


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
        return BackwardConfig(columns=replace(TABLE.first("atomic", ColumnConfig, **asked), atomic=True), rows=None)
    return BackwardConfig(
        columns=TABLE.first("columns", ColumnConfig, **asked), rows=TABLE.first("rows", RowConfig, **asked)
    )


def hopper_forward_config(
    capability: tuple[int, int], item_bytes: int, attn_dim: int, linear_dim: int, seqlen: int
) -> ForwardConfig | None:
    """Tuned default of the Hopper forward; None where that kernel cannot be launched so.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: of an element.
        attn_dim: of queries and keys.
        linear_dim: of values.
        seqlen: most rows of a sequence.
    """
    if capability != (9, 0) or item_bytes != 2:
        return None
    found = TABLE.first(
        "hopper_forward", ForwardConfig, **_asked(capability, item_bytes, max(attn_dim, linear_dim), seqlen)
    )
    fault = hopper_fault(found, capability=capability, item_bytes=item_bytes, attn_dim=attn_dim, linear_dim=linear_dim)
    return None if fault else found


def hopper_columns_config(
    capability: tuple[int, int], item_bytes: int, attn_dim: int, linear_dim: int, seqlen: int
) -> ColumnConfig | None:
    """Tuned default of the Hopper backward, which is atomic; as of `hopper_forward_config`."""
    if capability != (9, 0) or item_bytes != 2:
        return None
    asked = _asked(capability, item_bytes, max(attn_dim, linear_dim), seqlen)
    found = replace(TABLE.first("hopper_atomic", ColumnConfig, **asked), atomic=True)
    fault = hopper_columns_fault(
        found, capability=capability, item_bytes=item_bytes, attn_dim=attn_dim, linear_dim=linear_dim
    )
    return None if fault else found


def _asked(capability: tuple[int, int], item_bytes: int, dim: int, seqlen: int) -> dict[str, Any]:
    return {"cards": capability[0], "item_bytes": item_bytes, "dim": dim, "seqlen": seqlen}
