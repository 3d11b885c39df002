"""Launch configuration of the paged HSTU kernel: tiles, warps, stages, code paths, and the defaults.

The defaults are data, in ``configs.toml`` beside this file: the first row that fits is taken.
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
    """Launch configuration of the paged forward kernel."""

    EXAMPLE: ClassVar[str] = "m128n64w8s3-ahead-tma"

    block_m: Annotated[int, Spelled("m{}", (*_SIZES, 192))]
    "new rows of a tile; 192 by order ws alone"
    block_n: Annotated[int, Spelled("n{}", _SIZES)]
    "keys of a tile; of a portable one, which lies in one page, at most the page size"
    warps: Annotated[int, Spelled("w{}")]
    stages: Annotated[int, Spelled("s{}")]
    "tiles of keys in flight"
    new_stages: Annotated[int, Spelled("-new{}")] = 1
    "the same of the step's own keys, which are masked; more of them are more registers"
    order: Annotated[str, Spelled("-{}", ("plain", "ahead", "ws"), far=3)] = "plain"
    """ahead: the scores of a tile are there before the product with the last one's values; SiLU runs beside that;
    ws: so too, while a warp of its own loads pages for warpgroups of 64 rows (sm_90)"""
    loads: Annotated[str, Spelled("-{}", ("pointer", "tma"))] = "pointer"
    "of cached keys. tma: whole tiles by the tensor memory accelerator (sm_90 and later; elsewhere pointer)"
    silu: Annotated[str, Spelled("-{}", ("tanh", "exp"))] = "tanh"
    "tanh: one instruction of an NVIDIA card; exp: by a plain exponential, anywhere"
    precision: Annotated[str, Spelled("-{}", ("ieee", "tf32x3", "tf32"))] = "ieee"
    "of fp32 products: ieee, tf32x3, tf32; 16-bit ones have no choice"
    least_tiles: Annotated[int, Spelled("-least{}")] = 4
    "tiles of keys that a part has at least, where keys are split; order ws has an estimate of its own (`dense.parts`)"

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
        """Whether it is of the kernel in hopper.forward, whose warps have jobs of their own."""
        return self.order == "ws"

    def hopper_flags(self, block_d: int) -> dict[str, Any]:
        """What of the configuration is compiled into that kernel."""
        return _dense(self).hopper_flags(block_d, block_d)

    def flags(self) -> dict[str, Any]:
        """What of the configuration is compiled into a kernel."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "APPROXIMATE": self.silu == "tanh",
            "PRECISION": self.precision,
            "NEW_STAGES": self.new_stages,
            "AHEAD": self.order == "ahead",
        }

    def splits(self, programs: int, keys: int, processors: int) -> int:
        """How many parts the keys are split into: so many that one wave of programs fills the card.

        Args:
            programs: without a split.
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
        item_bytes: of an element.
        dim: of queries, keys and values.
        page_size: keys of a page.
    """
    return TABLE.first("forward", PagedConfig, cards=capability[0], item_bytes=item_bytes, dim=dim, page_size=page_size)


@cache
def hopper_config(capability: tuple[int, int], item_bytes: int, dim: int, page_size: int) -> PagedConfig | None:
    """Default of the kernel for Hopper, arguments as in `default_config`; None where that kernel cannot be launched so."""
    if capability != (9, 0) or item_bytes != 2:
        return None
    found = TABLE.first(
        "hopper_forward", PagedConfig, cards=capability[0], item_bytes=item_bytes, dim=dim, page_size=page_size
    )
    return None if hopper_fault(found, capability=capability, item_bytes=item_bytes, dim=dim) else found


def hopper_fault(config: PagedConfig, *, capability: tuple[int, int] | None, item_bytes: int, dim: int) -> str | None:
    """Why the kernel for Hopper cannot be launched so, behind the configuration's name; None where it can.

    Args:
        config: with the order ws.
        capability: of the card; None: not asked.
        item_bytes: of an element.
        dim: of queries, keys and values.
    """
    if (config.loads, config.precision, config.new_stages) != ("pointer", "ieee", 1):
        return "has its own loads, precision and new rows; none of the three given"
    return dense_fault(_dense(config), capability=capability, item_bytes=item_bytes, attn_dim=dim, linear_dim=dim)


@lru_cache(maxsize=256)
def _dense(config: PagedConfig) -> ForwardConfig:
    """The dense forward for Hopper whose consumers these are."""
    return ForwardConfig(
        block_m=config.block_m,
        block_n=config.block_n,
        warps=config.warps,
        stages=config.stages,
        silu=config.silu,
        order="ws",
    )


def nearest_config(text: str) -> str:
    """The default whose short form is most like a text."""
    return nearest(text, [row["config"] for name in ("hopper_forward", "forward") for row in TABLE.rows(name)])
