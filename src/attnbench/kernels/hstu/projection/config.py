"""Launch configuration of the wide product: its tile, warps, stages and loads, and the default by an estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from attnbench.kernels.shared.configs import LaunchConfig, Spelled

TILES = ((128, 128), (128, 64), (64, 64), (64, 32))
"Rows and columns, of 16-bit products; the larger one where two are estimated alike."
PRODUCTS, BYTES = 2048, 64
"Of an SM in a cycle: multiply-adds of 16 bits in its tensor cores, and bytes from the L2 (sm_90; others differ alike)."


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectionConfig(LaunchConfig):
    """Launch configuration of the wide product."""

    EXAMPLE: ClassVar[str] = "m128n128k64w8s4-tma"

    block_m: Annotated[int, Spelled("m{}", (16, 32, 64, 128, 256))]
    "rows of a tile"
    block_n: Annotated[int, Spelled("n{}", (16, 32, 64, 128, 256))]
    "columns of a tile"
    block_k: Annotated[int, Spelled("k{}", (16, 32, 64, 128))]
    "inputs that are multiplied at a time"
    warps: Annotated[int, Spelled("w{}", (1, 2, 4, 8))]
    stages: Annotated[int, Spelled("s{}", range(1, 9))]
    "of tiles in flight"
    loads: Annotated[str, Spelled("-{}", ("pointer", "tma"))] = "pointer"
    "tma: by the tensor memory accelerator (sm_90 and later, rows of whole 16 bytes)"


def default_config(
    capability: tuple[int, int], item_bytes: int, rows: Any, columns: int, processors: int, *, tma: bool
) -> ProjectionConfig:
    """Default: the tile whose waves of programs are estimated to take least.

    A program multiplies at the rate of its SM's tensor cores, or as fast as both its tiles come from the L2, whichever
    is slower.  An estimate: nothing of it has been raced on a card.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: of an element.
        rows: of the product; a number or a `RowCount`.
        columns: of the product.
        processors: SMs of the card.
        tma: whether addresses and strides are such that the tensor memory accelerator reads them.
    """
    if item_bytes == 4:
        return ProjectionConfig(block_m=64, block_n=64, block_k=32, warps=4, stages=2)

    def cycles(tile: tuple[int, int]) -> Any:
        m, n = tile
        programs = (rows + (m - 1)) // m * -(-columns // n)
        return (programs + (processors - 1)) // processors * max(m * n // PRODUCTS, (m + n) * item_bytes // BYTES)

    block_m, block_n = min(TILES, key=cycles)
    warps = 8 if block_m * block_n > 64 * 128 else 4
    if tma and capability >= (9, 0):
        # sm_120 has 99 KiB of shared memory for a program.
        stages = 4 if capability[0] == 9 else 3
        return ProjectionConfig(block_m=block_m, block_n=block_n, block_k=64, warps=warps, stages=stages, loads="tma")
    return ProjectionConfig(block_m=block_m, block_n=block_n, block_k=32, warps=warps, stages=4)
