"""Launch configuration of the paged HSTU kernels: tiles, warps, stages, code paths, and the defaults.

The defaults are rows of ``configs.toml`` beside this file; the first row that matches is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from attnbench.kernels.hstu.dense.configs import ForwardConfig
from attnbench.kernels.hstu.dense.configs import hopper_fault as dense_fault
from attnbench.kernels.shared.configs import Defaults, LaunchConfig, Spelled, nearest

TABLE = Defaults(Path(__file__).with_name("configs.toml"))
_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedConfig(LaunchConfig):
    """Launch configuration of the paged forward."""

    EXAMPLE: ClassVar[str] = "m128n64w8s3-ahead-tma"

    block_m: Annotated[int, Spelled("m{}", (*_SIZES, 192))]
    "new rows of a tile; 192 only with order ws"
    block_n: Annotated[int, Spelled("n{}", _SIZES)]
    "keys of a tile; in the portable kernel a tile lies in one page, so at most the page size"
    warps: Annotated[int, Spelled("w{}")]
    stages: Annotated[int, Spelled("s{}")]
    "tiles of keys in flight"
    new_stages: Annotated[int, Spelled("-new{}")] = 1
    "the same for the step's own keys, which are masked; more stages take more registers"
    order: Annotated[str, Spelled("-{}", ("plain", "ahead", "ws"), far=3)] = "plain"
    """ahead: a tile's scores are computed before the previous tile's product with values, which then overlaps with SiLU;
    ws: the same, with a producer warp that loads pages for consumer warpgroups of 64 rows (sm_90)"""
    loads: Annotated[str, Spelled("-{}", ("pointer", "tma"))] = "pointer"
    "how cached keys are loaded. tma: whole tiles by the tensor memory accelerator (sm_90 and later; elsewhere pointer)"
    silu: Annotated[str, Spelled("-{}", ("tanh", "exp"))] = "tanh"
    "tanh: one instruction of NVIDIA cards; exp: by an exponential, on any card"
    precision: Annotated[str, Spelled("-{}", ("ieee", "tf32x3", "tf32"))] = "ieee"
    "for fp32 products only: ieee, tf32x3, tf32"
    least_tiles: Annotated[int, Spelled("-least{}")] = 4
    "fewest key tiles of a part, where keys are split; order ws uses an estimate instead (`dense.parts`)"

    def __post_init__(self) -> None:
        """Refuse what a field does not accept.

        Raises:
            ValueError: naming the field, its value and what is accepted.
        """
        LaunchConfig.__post_init__(self)
        if self.block_m == 192 and self.order != "ws":
            raise ValueError(f"block_m=192 is not known of order={self.order}; one of {', '.join(map(str, _SIZES))}")

    @property
    def hopper(self) -> bool:
        """Whether it is for the warp-specialized kernel in hopper.forward."""
        return self.order == "ws"

    def hopper_flags(self, block_d: int) -> dict[str, Any]:
        """Compile-time constants of that kernel that come from the configuration."""
        return _dense(self).hopper_flags(block_d, block_d)

    def flags(self) -> dict[str, Any]:
        """Compile-time constants of the portable kernel that come from the configuration."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "APPROXIMATE": self.silu == "tanh",
            "PRECISION": self.precision,
            "NEW_STAGES": self.new_stages,
            "AHEAD": self.order == "ahead",
        }

    def splits(self, programs: int, keys: int, processors: int) -> int:
        """Into how many parts to split the keys, so that one wave of programs fills the card.

        Args:
            programs: number of programs without a split.
            keys: most keys of a sequence.
            processors: SMs of the card.
        """
        tiles = -(-keys // self.block_n)
        return max(1, min(processors // max(1, programs), tiles // self.least_tiles))


@cache
def default_config(capability: tuple[int, int], item_bytes: int, dim: int, page_size: int) -> PagedConfig:
    """Default of the portable paged forward.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: bytes of an element.
        dim: of queries, keys and values.
        page_size: keys of a page.
    """
    return TABLE.first("forward", PagedConfig, cards=capability[0], item_bytes=item_bytes, dim=dim, page_size=page_size)


@cache
def hopper_config(capability: tuple[int, int], item_bytes: int, dim: int, page_size: int) -> PagedConfig | None:
    """Default of the Hopper kernel, arguments as in `default_config`; None if it does not support them."""
    if capability != (9, 0) or item_bytes != 2:
        return None
    found = TABLE.first(
        "hopper_forward", PagedConfig, cards=capability[0], item_bytes=item_bytes, dim=dim, page_size=page_size
    )
    return None if hopper_fault(found, capability=capability, item_bytes=item_bytes, dim=dim) else found


def hopper_fault(config: PagedConfig, *, capability: tuple[int, int] | None, item_bytes: int, dim: int) -> str | None:
    """Why the Hopper kernel cannot be launched this way, as words after the configuration's name; None if it can.

    Args:
        config: with the order ws.
        capability: of the card; None: not checked.
        item_bytes: bytes of an element.
        dim: of queries, keys and values.
    """
    if (config.loads, config.precision, config.new_stages) != ("pointer", "ieee", 1):
        return "has its own loads, precision and new rows; none of the three given"
    return dense_fault(_dense(config), capability=capability, item_bytes=item_bytes, attn_dim=dim, linear_dim=dim)


@lru_cache(maxsize=256)
def _dense(config: PagedConfig) -> ForwardConfig:
    """The configuration of the dense Hopper forward with the same consumers."""
    return ForwardConfig(
        block_m=config.block_m,
        block_n=config.block_n,
        warps=config.warps,
        stages=config.stages,
        silu=config.silu,
        order="ws",
    )


def nearest_config(text: str) -> str:
    """The default whose short form is most similar to a text."""
    return nearest(text, [row["config"] for name in ("hopper_forward", "forward") for row in TABLE.rows(name)])
