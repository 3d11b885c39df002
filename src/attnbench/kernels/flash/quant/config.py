"""Launch configuration of the quantised forward: tiles, warps, stages and code path.

Short form, what differs from the defaults spelled out:  ``m192n128w12s2-ws``
Which of them a case has says `space`, and why not `RULES`; tuned defaults are rows of ``defaults.toml``.  Imports
without torch and Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

from attnbench.kernels.shared.configs import Defaults, LaunchConfig, Spelled
from attnbench.kernels.shared.configs import nearest as closest
from attnbench.kernels.shared.family import Family, Part, Values

TABLE = Defaults(Path(__file__).with_name("defaults.toml"))


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantConfig(LaunchConfig):
    """Launch configuration of the kernel; precision and dims belong to the case."""

    EXAMPLE: ClassVar[str] = "m128n64w8s3"

    block_m: Annotated[int, Spelled("m{}", (64, 128))]
    "queries of a tile"
    block_n: Annotated[int, Spelled("n{}", (64, 128))]
    "keys of a tile"
    warps: Annotated[int, Spelled("w{}", (4, 8))]
    "of the products"
    stages: Annotated[int, Spelled("s{}", (1, 2, 3, 4))]
    "tiles of keys and values in flight"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What of a case and its card the rules ask for."""

    dim: int
    capability: tuple[int, int] = (9, 0)

    @property
    def columns(self) -> int:
        """Of the quantised tensors."""
        return 64 if self.dim <= 64 else 128


def _warps(config: QuantConfig, shape: Shape) -> str | None:
    if config.block_m // config.warps < 16:
        return f"has {config.block_m // config.warps} rows a warp; such as m128w8"
    return None


def _registers(config: QuantConfig, shape: Shape) -> str | None:
    # Output, its part of a tile, scores and weights, of 32 threads to a warp.
    need = config.block_m * (2 * shape.columns + config.block_n * 5 // 4) // (32 * config.warps)
    return f"keeps {need} numbers a thread; fewer keys or more warps" if need > 224 else None


RULES: dict[str, Callable[[QuantConfig, Shape], str | None]] = {"warps": _warps, "registers": _registers}
"Why a configuration is left out, by name: what it says is wrong with it, or None."


def fault(config: QuantConfig, shape: Shape) -> tuple[str, str] | None:
    """Name of the first rule that leaves a configuration out, and what it says; None of a valid one."""
    return next(((name, said) for name, rule in RULES.items() if (said := rule(config, shape)) is not None), None)


def space(shape: Shape) -> list[QuantConfig]:
    """Every valid configuration for a shape, in one order."""
    there = (
        QuantConfig(block_m=m, block_n=n, warps=warps, stages=stages)
        for m, n, warps, stages in product((64, 128), (64, 128), (4, 8), (2, 3, 4))
    )
    return [config for config in there if fault(config, shape) is None]


def nearest(text: str, shape: Shape) -> str:
    """The valid short form most like a text, or like what it says if it can be read; empty where there is none."""
    there = space(shape)
    try:
        wanted = QuantConfig.parse(text, spelled=False)
    except ValueError:
        return closest(text, [one.short for one in there])
    return min(there, key=wanted.distance).short if there else ""


def default_config(shape: Shape) -> QuantConfig:
    """Tuned default; capability (0, 0) is the interpreter."""
    return TABLE.first("forward", QuantConfig, cards=shape.capability[0], dim=shape.dim)


class _Forward(Part[Shape]):
    side, hint = "forward", "m…"

    def begins(self, text: str) -> bool:
        return text.startswith(("m", "block_m"))

    def space(self, shape: Shape) -> Mapping[str, Values]:
        return {config.short: config.values for config in space(shape)}

    def read(self, text: str, shape: Shape) -> Mapping[str, Any]:
        config = QuantConfig.parse(text)
        if (found := fault(config, shape)) and text != self.default(shape):
            raise ValueError(f"is not valid, {found[0]}: it {found[1]}")
        return config.values

    def check(self, text: str, shape: Shape) -> None:
        self.read(text, shape)

    def tuned(self, shape: Shape) -> str:
        return default_config(shape).short

    def nearest(self, text: str, shape: Shape) -> str:
        return nearest(text, shape)


FAMILY = Family((_Forward(),))
