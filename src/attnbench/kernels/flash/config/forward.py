"""Launch configuration of the flash forward: tiles, warps, stages and code path.

Short form, what differs from the defaults spelled out:  ``m128n128w8s3-tma-pp-persistent``
Full form, every field:  ``block_m=128 block_n=128 warps=8 stages=3 loads=tma order=pp mask=apart ...``

Which of them a shape has says `space`; the tuned defaults are in `defaults`.  Imports without torch and
Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from attnbench.kernels.shared.configs import LaunchConfig, Spelled

HOPPER = ("ws", "pp")
"Orders of the kernel in hopper.forward, whose warps have jobs of their own."
DECODE = "decode"
"Order of the kernels in portable.decode, for few queries."
WARPGROUPS = {8: 240, 12: 160, 16: 112}
"Its warps beside the loader, and how many registers each thread of them has."


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
    "tiles of keys and values in flight"
    loads: Annotated[str, Spelled("-{}", ("pointer", "tma"))] = "pointer"
    "pointer, or tma: tiles by the tensor memory accelerator (sm_90 and later, and only of tensors aligned for it)"
    order: Annotated[str, Spelled("-{}", ("plain", "ahead", "ws", "pp", DECODE), far=3)] = "plain"
    """ahead: the scores of a tile come before the product with the last one's values, and its softmax runs beside that
    (not on sm_90); ws: so too, while a warp of its own loads for warpgroups of 64 rows each; pp: these take turns
    (ping-pong); decode: the queries of all heads that share keys are a tile, and keys are shared out among programs"""
    mask: Annotated[str, Spelled("-{}", ("apart", "fused"))] = "apart"
    "apart: masked tiles in a loop of their own; fused: in the one loop (of packed tensors by TMA always apart)"
    exp: Annotated[str, Spelled("-{}", ("unit", "mix"))] = "unit"
    "unit: the card's own; mix: some by a polynomial, to relieve it: every fourth, of ws and pp every eighth"
    queries: Annotated[str, Spelled("-{}", ("shared", "split"))] = "shared"
    """shared: products read them from shared memory; split: half of their dims from registers (ws and pp, from 128
    dims on)"""
    rings: Annotated[str, Spelled("-{}", ("even", "deep"))] = "even"
    "even: as many tiles of keys in flight as of values; deep: one of keys more, which are waited for first (ws and pp)"
    rescale: Annotated[str, Spelled("-{}", ("eager", "lazy"))] = "eager"
    """eager: the output so far takes a factor as soon as it is known, beside no product of its warpgroup; lazy: beside
    the next scores' (ws and pp)"""
    dims: Annotated[str, Spelled("-{}", ("padded", "pieces"))] = "padded"
    """padded: tiles have as many columns as the next power of two; pieces: they are two, of a power of two each, as 64
    and 32 for 96 dims (ws and pp)"""
    weights: Annotated[str, Spelled("-{}", ("held", "stored"))] = "held"
    "held: products with values read weights from registers; stored: from shared memory (ws and pp)"
    products: Annotated[str, Spelled("-{}", ("overlapped", "serial"))] = "overlapped"
    """overlapped: a warpgroup's next scores are computed beside its product with values; serial: after it, which takes
    fewer registers (ws)"""
    grid: Annotated[str, Spelled("-{}", ("tiles", "few", "ticket", "persistent"))] = "tiles"
    """tiles: a program each; persistent: a program an SM, which takes every so many-th.  Of ws and pp too: few: a
    program takes four of a section, long and short ones; ticket: a program an SM, which draws whichever is next"""
    registers: Annotated[int | None, Spelled("-r{}", range(24, 249, 8))] = None
    "most of a thread, to have more programs on an SM; None: the compiler's choice"
    section_mib: Annotated[int, Spelled("-l{}", range(1, 1000))] = 24
    "programs next to one another share this much of the L2"
    sharers: Annotated[int, Spelled("-x{}", range(1, 9))] = 2
    "programs an SM among which keys are shared out (decode)"

    def __post_init__(self) -> None:
        LaunchConfig.__post_init__(self)
        if self.grid in ("few", "ticket") and self.order not in HOPPER:
            raise ValueError(f"grid={self.grid} is not of order={self.order}; tiles, persistent, or order=ws or pp")

    @property
    def threads(self) -> int:
        """Of a program."""
        return 32 * self.warps

    def flags(self, *, packed: bool, tma: bool) -> dict[str, Any]:
        """What of the configuration is compiled into the kernel.

        Args:
            packed: sequences lie one after another: a descriptor does not end where one of them does.
            tma: the tensors can be read so.
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
        """What the compiler is told beside the kernel's arguments."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages}
        return options | ({"maxnreg": self.registers} if self.registers else {})


parse = ForwardConfig.parse
WORDS = {name: column.spelled.accepted for name, column in ForwardConfig.table().items() if column.kind is str}
"""Fields that are one of a few words, the default first."""
