"""One problem of block-sparse softmax attention: a dense problem and a map of the blocks that are computed.

The scores of Sq queries and Sk keys are divided into blocks of ``block_q`` rows and ``block_k`` columns; blocks in the
last row and column may be smaller.  A map, bool [batch, nheads, ⌈Sq/block_q⌉, ⌈Sk/block_k⌉], contains for every query
head the blocks it attends to; keys of other blocks are hidden.  A causal mask also hides later keys, aligned
bottom-right.  A query that sees no key has the output 0 and the log-sum-exp -∞.

Imports without torch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any

from attnbench.errors import UsageError, refusal, unknown
from attnbench.workloads.attention.case import ACCEPTED_DTYPES, AttentionCase
from attnbench.workloads.given_files import is_known

BLOCKS = ("128x128", "128x64", "64x128", "64x64")
"Queries x keys of a block."
FULL = "full"
ON_GRID = ("sta", "radial", "frame")
"Patterns of video tokens, which need a grid."
PATTERNS = (FULL, "random", "random-uneven", "window", "sink", *ON_GRID)
ACCEPTED_PATTERN = f"one of {', '.join(PATTERNS)}, or a file of a map: PATH.npy, PATH.safetensors"
ACCEPTED_DENSITY = "a number above 0, at most 1"
ACCEPTED_GRID = "frames:height:width in tokens, such as 13:30:45"
DEFAULT_DENSITY = 0.3
TILE = (6, 8, 8)
"Tokens of a tile over (t, h, w) in the order of sliding tile attention, where a tile's tokens are contiguous."

_SAME: Any = None
_SIZES = ("batch", "seqlen", "seqlen_k", "nheads", "nheads_kv", "headdim")


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseCase:
    """A frozen problem, forward only.

    Raises:
        UsageError: the value of a field is not allowed; the message names the field.
    """

    batch: int
    seqlen: int
    "queries (Sq)"
    seqlen_k: int = _SAME
    "keys (Sk); default: seqlen"
    nheads: int
    "query heads"
    nheads_kv: int = _SAME
    "key and value heads, a divisor of nheads; default: nheads"
    headdim: int
    causal: bool = False
    dtype: str = "fp16"
    block: str = BLOCKS[0]
    "queries x keys of a block"
    pattern: str = "random"
    "source of the map: a name in `PATTERNS`, or a file's name and the start of its SHA-256"
    density: float | None = None
    "share of the visible blocks of a row that the map keeps; 1 for `full`, None for a file; default: 0.3"
    grid: str | None = None
    "tokens of a video, frames:height:width; further tokens of the sequence are text before them"
    map_seed: int = 0
    "seed of random patterns"
    widen: bool = False
    "a library with larger blocks may round the map up to them"

    def __post_init__(self) -> None:
        for name, partner in (("seqlen_k", "seqlen"), ("nheads_kv", "nheads")):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self, partner))
        self._check_shape()
        if self.block not in BLOCKS:
            raise UsageError(
                refusal(
                    "sparse", "block", self.block, "is not supported", f"queries x keys, one of {', '.join(BLOCKS)}"
                )
            )
        if not isinstance(self.pattern, str) or not (self.pattern in PATTERNS or is_known(self.pattern)):
            raise UsageError(refusal("sparse", "pattern", self.pattern, "is not known", ACCEPTED_PATTERN))
        for name in ("causal", "widen"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(refusal("sparse", name, getattr(self, name), "is not a boolean", "true or false"))
        if type(self.map_seed) is not int or not 0 <= self.map_seed < 2**32:
            raise UsageError(
                refusal("sparse", "map_seed", self.map_seed, "cannot be used", "a whole number from 0 to 4294967295")
            )
        object.__setattr__(self, "density", self._plain_density())
        self._check_grid()

    def _check_shape(self) -> None:
        if self.dtype not in ACCEPTED_DTYPES:
            raise unknown("sparse", "dtype", self.dtype, ACCEPTED_DTYPES)
        try:
            _ = self.dense
        except UsageError as why:
            raise UsageError(str(why).replace("attention: ", "sparse: ", 1)) from None

    def _plain_density(self) -> float | None:
        density, pattern = self.density, self.pattern
        if pattern not in PATTERNS:
            if density is not None:
                raise UsageError(refusal("sparse", "density", density, f"is said by the file {pattern}", "none"))
            return None
        if density is None:
            return 1.0 if pattern == FULL else DEFAULT_DENSITY
        if isinstance(density, bool) or not isinstance(density, int | float) or not 0 < density <= 1:
            raise UsageError(refusal("sparse", "density", density, "is out of range", ACCEPTED_DENSITY))
        if pattern == FULL and density != 1:
            raise UsageError(refusal("sparse", "density", density, "does not go with pattern=full", "1"))
        columns = self.blocks[1]
        if density * columns < 1 - 1e-9:
            raise UsageError(
                refusal(
                    "sparse",
                    "density",
                    density,
                    f"leaves less than one of the {columns} blocks of a row",
                    f"at least {math.ceil(1e6 / columns) / 1e6:g}",
                )
            )
        return float(density)

    def _check_grid(self) -> None:
        if self.pattern in ON_GRID and self.grid is None:
            raise UsageError(
                refusal("sparse", "grid", "none", f"does not go with pattern={self.pattern}", ACCEPTED_GRID)
            )
        if self.grid is None:
            return
        if not isinstance(self.grid, str) or not re.fullmatch(r"[1-9]\d{0,5}(:[1-9]\d{0,5}){2}", self.grid, re.ASCII):
            raise UsageError(refusal("sparse", "grid", self.grid, "is not a grid", ACCEPTED_GRID))
        tokens = math.prod(self.thw)
        if not tokens <= self.seqlen == self.seqlen_k:
            raise UsageError(
                refusal(
                    "sparse",
                    "grid",
                    self.grid,
                    f"has {tokens} tokens, seqlen={self.seqlen} and seqlen_k={self.seqlen_k}",
                    "as many queries as keys, and no fewer than tokens",
                )
            )
        if self.pattern == "sta" and (
            tokens != self.seqlen or any(n % tile for n, tile in zip(self.thw, TILE, strict=True))
        ):
            raise UsageError(
                refusal(
                    "sparse",
                    "grid",
                    self.grid,
                    f"does not go with pattern=sta, seqlen={self.seqlen}",
                    "multiples of 6:8:8, and as many tokens as seqlen",
                )
            )

    @property
    def dense(self) -> AttentionCase:
        """The same problem without a map."""
        return AttentionCase(
            batch=self.batch,
            seqlen=self.seqlen,
            seqlen_k=self.seqlen_k,
            nheads=self.nheads,
            nheads_kv=self.nheads_kv,
            headdim=self.headdim,
            causal=self.causal,
            dtype=self.dtype,
            mode=self.mode,
        )

    @property
    def block_shape(self) -> tuple[int, int]:
        """Queries and keys of a block."""
        rows, columns = self.block.split("x")
        return int(rows), int(columns)

    @property
    def blocks(self) -> tuple[int, int]:
        """Numbers of rows and columns of blocks of a map."""
        rows, columns = self.block_shape
        return -(-self.seqlen // rows), -(-self.seqlen_k // columns)

    @property
    def thw(self) -> tuple[int, int, int]:
        """Frames, height and width of the video; a single frame of one line if there is no grid."""
        t, h, w = map(int, (self.grid or f"1:1:{self.seqlen}").split(":"))
        return t, h, w

    @property
    def text_tokens(self) -> int:
        """Tokens before those of the video."""
        return self.seqlen - math.prod(self.thw)

    @property
    def mode(self) -> str:
        """Always fwd: there is no backward."""
        return "fwd"

    @property
    def group_size(self) -> int:
        """Query heads that share a KV head."""
        return self.nheads // self.nheads_kv

    @property
    def scale(self) -> float:
        """Factor of the scores before the softmax, 1/sqrt(headdim)."""
        return float(self.headdim**-0.5)

    @property
    def id(self) -> str:
        """Short name such as ``b1-s1024-h8-d64-fp16-128x128-random-0.3-fwd``."""
        parts = [self.dense.id.removesuffix("-fwd"), self.block, self.pattern.replace("@", "_")]
        if self.pattern in PATTERNS and self.pattern != FULL:
            parts.append(f"{self.density:g}")
        if self.grid is not None:
            parts.append("g" + self.grid.replace(":", "x"))
        parts += [f"m{self.map_seed}"] * (self.map_seed != 0) + ["widen"] * self.widen
        return "-".join([*parts, self.mode])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
