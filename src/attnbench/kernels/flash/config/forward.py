"""Launch configuration of the flash forward: tiles, warps, stages and code path.

The short form spells out what differs from the defaults:  ``m128n128w8s3-tma-pp-persistent``
The full form has every field:  ``block_m=128 block_n=128 warps=8 stages=3 loads=tma order=pp mask=apart ...``

`space` lists those that are valid for a shape; the tuned defaults are in `defaults`.  Can be imported without torch and
Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from attnbench.kernels.shared.configs import LaunchConfig, Spelled

HOPPER = ("ws", "pp")
"Orders of the warp-specialized kernel in hopper.forward."
DECODE = "decode"
"Order of the kernels in portable.decode, for few queries."
WARPGROUPS = {8: 240, 12: 160, 16: 112}
"Consumer warps, and the registers of each of their threads."


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(LaunchConfig):
    """Launch configuration of the forward kernel; precision and dims belong to the case."""

    EXAMPLE: ClassVar[str] = "m128n128w8s2-tma-pp"

    block_m: Annotated[int, Spelled("m{}", (16, 32, 64, 128, 192, 256))]
    "queries of a tile"
    block_n: Annotated[int, Spelled("n{}", (16, 32, 64, 128, 256))]
    "keys of a tile"
    warps: Annotated[int, Spelled("w{}", (1, 2, 4, 8, 12, 16))]
    stages: Annotated[int, Spelled("s{}", (1, 2, 3, 4, 5, 6, 7, 8))]
    "pipeline stages: tiles of keys and values in flight"
    loads: Annotated[str, Spelled("-{}", ("pointer", "tma"))] = "pointer"
    "pointer, or tma: by the tensor memory accelerator (sm_90 and later; needs tensors aligned for it)"
    order: Annotated[str, Spelled("-{}", ("plain", "ahead", "ws", "pp", DECODE), far=3)] = "plain"
    """ahead: a tile's scores are issued before the previous tile's value product, so that softmax overlaps with that product
    (not on sm_90); ws: the same, with a producer warp and consumer warpgroups of 64 rows; pp: ws with ping-pong scheduling;
    decode: the queries of all heads that share keys are one tile, and keys are divided among programs"""
    mask: Annotated[str, Spelled("-{}", ("apart", "fused"))] = "apart"
    "apart: masked tiles in a loop of their own; fused: all tiles in one loop (packed tensors by TMA are always apart)"
    exp: Annotated[str, Spelled("-{}", ("unit", "mix"))] = "unit"
    "unit: exponentials by the special function unit; mix: one in four (ws, pp: one in eight) by a polynomial, to relieve it"
    queries: Annotated[str, Spelled("-{}", ("shared", "split"))] = "shared"
    """shared: products read queries from shared memory; split: half of their dims from registers (ws and pp, from 128
    dims on)"""
    rings: Annotated[str, Spelled("-{}", ("even", "deep", "joint"))] = "even"
    """even: as many key tiles in flight as value tiles; deep: one key tile more, as keys are needed first; joint: one ring
    for both, of which a stage holds the keys of a tile, and then its values (ws and pp)"""
    rescale: Annotated[str, Spelled("-{}", ("eager", "lazy"))] = "eager"
    """eager: the output is rescaled as soon as the factor is known, while no product of its warpgroup runs; lazy: while the
    next score product runs (ws and pp)"""
    dims: Annotated[str, Spelled("-{}", ("padded", "pieces"))] = "padded"
    """padded: the columns of a tile are padded to a power of two; pieces: two tiles of a power of two each, such as 64
    and 32 for 96 dims (ws and pp)"""
    weights: Annotated[str, Spelled("-{}", ("held", "stored", "double"))] = "held"
    """held: value products read weights from registers; stored: from shared memory; double: from registers, and the next
    tile's weights have others (ws and pp)"""
    grid: Annotated[str, Spelled("-{}", ("tiles", "few", "ticket", "persistent"))] = "tiles"
    """tiles: a program per tile; persistent: a program per SM, with tiles at a fixed stride.  ws and pp also have few: a
    program computes four tiles of a section, long and short ones; ticket: a program per SM, which fetches the next tile
    from a counter"""
    registers: Annotated[int | None, Spelled("-r{}", range(24, 249, 8))] = None
    "limit per thread, to fit more programs on an SM; None: the compiler's choice"
    section_mib: Annotated[int, Spelled("-l{}", range(1, 1000))] = 24
    "memory that consecutive programs share in the L2"
    sharers: Annotated[int, Spelled("-x{}", range(1, 9))] = 2
    "programs per SM among which keys are divided (decode)"

    def __post_init__(self) -> None:
        LaunchConfig.__post_init__(self)
        if self.grid in ("few", "ticket") and self.order not in HOPPER:
            raise ValueError(f"grid={self.grid} is not of order={self.order}; tiles, persistent, or order=ws or pp")

    @property
    def threads(self) -> int:
        """Threads of a program."""
        return 32 * self.warps

    def flags(self, *, packed: bool, tma: bool) -> dict[str, Any]:
        """Compile-time constants of the kernel that come from the configuration.

        Args:
            packed: sequences are packed one after another: a descriptor does not end with a sequence.
            tma: whether the tensors can be read by TMA.
        """
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "TMA": tma,
            "AHEAD": self.order == "ahead",
            "FUSED": self.mask == "fused" and not (packed and tma),
            "MIX": self.exp == "mix",
            "PRECISION": "ieee",
            "PERSISTENT": self.grid == "persistent",
        }

    def options(self) -> dict[str, Any]:
        """Compiler options of the kernel."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages}
        return options | ({"maxnreg": self.registers} if self.registers else {})


parse = ForwardConfig.parse
WORDS = {name: column.spelled.accepted for name, column in ForwardConfig.table().items() if column.kind is str}
"""Values of the fields that are spelled as words, the default first."""
