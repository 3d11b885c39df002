"""How the paged HSTU kernel is cut: tiles, warps, stages, code paths, and the defaults.

The defaults are data, in ``configs.toml`` beside this file: the first row that fits is taken.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("configs.toml")
_WORDS = {"order": ("plain", "ahead"), "loads": ("pointer", "tma"), "silu": ("tanh", "exp"),
          "precision": ("ieee", "tf32x3", "tf32")}


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedConfig:
    """Cut of the paged forward kernel."""

    block_m: int
    "new rows of a tile"
    block_n: int
    "keys of a tile, which lies in one page: at most the page size"
    warps: int
    stages: int
    "tiles of keys in flight"
    new_stages: int = 1
    "the same of the step's own keys, which are masked; more of them are more registers"
    order: str = "plain"
    "ahead: the scores of a tile are there before the product with the last one's values; SiLU runs beside that product"
    loads: str = "pointer"
    "of cached keys. tma: whole tiles by the tensor memory accelerator (sm_90 and later; elsewhere pointer)"
    silu: str = "tanh"
    "tanh: one instruction of an NVIDIA card; exp: by a plain exponential, anywhere"
    precision: str = "ieee"
    "of fp32 products: ieee, tf32x3, tf32; 16-bit ones have no choice"
    least_tiles: int = 4
    "tiles of keys that a part has at least, where keys are split"

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name}={getattr(self, name)} is not known; one of {', '.join(words)}")
        for name in ("block_m", "block_n"):
            size = getattr(self, name)
            if size < 16 or size & (size - 1):
                raise ValueError(f"{name}={size} is no tile; a power of two from 16")

    def flags(self) -> dict[str, Any]:
        """What of the cut is compiled into a kernel."""
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "APPROXIMATE": self.silu == "tanh",
                "PRECISION": self.precision, "NEW_STAGES": self.new_stages, 
                "AHEAD": self.order == "ahead"}

    def splits(self, programs: int, keys: int, processors: int) -> int:
        """How many parts the keys are cut into: so many that one wave of programs fills the card.

        Args:
            programs: without a cut.
            keys: most keys of a sequence.
            processors: SMs of the card.
        """
        tiles = -(-keys // self.block_n)
        return max(1, min(processors // max(1, programs), tiles // self.least_tiles))


def default_config(capability: tuple[int, int], item_bytes: int, dim: int, page_size: int) -> PagedConfig:
    """Default of the paged forward.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: of an element.
        dim: of queries, keys and values.
        page_size: keys of a page.
    """
    for row in rows():
        if (capability[0] in row.get("cards", [capability[0]]) and item_bytes == row["item_bytes"]
                and dim <= row["dim"] and page_size >= row.get("page_size", 0)):
            return config_of(row)
    raise AssertionError(f"configs.toml has no row for {capability}, {item_bytes}, {dim}, {page_size}")


@cache
def rows() -> list[dict[str, Any]]:
    """Rows of the table, in the order they are tried."""
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))["forward"]


def config_of(row: dict[str, Any]) -> PagedConfig:
    """The cut a row of the table stands for."""
    return PagedConfig(**{field.name: row[field.name] for field in fields(PagedConfig) if field.name in row})
