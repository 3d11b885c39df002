"""Names of flash configurations: ``m…`` for the forward, ``b…`` for the backward, ``m…+b…`` for both.

Can be imported without torch and Triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from attnbench.kernels.flash.config.backward import (
    BackwardConfig,
    backward_config,
    backward_space,
    nearest_backward,
    why_not,
)
from attnbench.kernels.flash.config.decode import decode_config
from attnbench.kernels.flash.config.defaults import forward_config
from attnbench.kernels.flash.config.forward import ForwardConfig
from attnbench.kernels.flash.config.space import Shape, fault, nearest, space
from attnbench.kernels.shared.family import Family, Part, Values

__all__ = ["FAMILY", "Shape"]


class _Forward(Part[Shape]):
    side, hint = "forward", "m…"

    def begins(self, text: str) -> bool:
        return text.startswith(("m", "block_m"))

    def space(self, shape: Shape) -> Mapping[str, Values]:
        return {config.short: config.values for config in space(shape)}

    def read(self, text: str, shape: Shape) -> Values:
        config = ForwardConfig.parse(text)
        # Other precisions are refused elsewhere; the default is accepted whatever the rules say.
        if shape.item_bytes == 2 and (found := fault(config, shape)) and text != self.default(shape):
            rule, said = found
            raise ValueError(f"is not valid, {rule}: it {said}")
        return config.values

    def check(self, text: str, shape: Shape) -> None:
        self.read(text, shape)

    def tuned(self, shape: Shape) -> str:
        if shape.decodes:
            return decode_config(
                shape.capability,
                shape.item_bytes,
                max(shape.dim, shape.dim_v),
                shape.seqlen_q * shape.repeats,
                described=not shape.packed and not _odd(shape),
            ).short
        hopper = shape.described and shape.block(shape.dim) == shape.block(shape.dim_v) >= 32
        config = forward_config(
            shape.capability,
            shape.item_bytes,
            max(shape.dim, shape.dim_v),
            shape.seqlen_k,
            right=shape.right,
            grid=shape.grid,
            hopper=hopper,
            triton=shape.triton,
        )
        # Rows that are not a multiple of 16 bytes are loaded by pointers.
        return replace(config, loads="pointer").short if _odd(shape) else config.short

    def nearest(self, text: str, shape: Shape) -> str:
        return nearest(text, shape)


class _Backward(Part[Shape]):
    side, hint = "backward", "b…"

    def begins(self, text: str) -> bool:
        return text.startswith(("b", "columns=")) and not text.startswith("block_m")

    def space(self, shape: Shape) -> Mapping[str, Values]:
        spaces = [
            one
            for deterministic in (False, True)
            for one in backward_space(*_facts(shape), deterministic=deterministic)
        ]
        return {config.short: _values(config) for config in spaces}

    def read(self, text: str, shape: Shape) -> Values:
        config = BackwardConfig.parse(text)
        if (wrong := why_not(config, *_facts(shape))) and text != self.default(shape):
            raise ValueError(f"is not valid, {wrong}")
        return _values(config)

    def check(self, text: str, shape: Shape) -> None:
        self.read(text, shape)

    def tuned(self, shape: Shape) -> str:
        return backward_config(
            shape.capability, shape.item_bytes, max(shape.dim, shape.dim_v), packed=shape.packed, hopper=shape.described
        ).short

    def nearest(self, text: str, shape: Shape) -> str:
        return nearest_backward(text, *_facts(shape))


FAMILY = Family((_Forward(), _Backward()))


def _facts(shape: Shape) -> tuple[tuple[int, int], int, int, int]:
    return shape.capability, shape.item_bytes, shape.dim, shape.dim_v


def _odd(shape: Shape) -> bool:
    """Whether some rows are not a multiple of 16 bytes, which tensor maps require."""
    return any(dim * shape.item_bytes % 16 for dim in (shape.dim, shape.dim_v))


def _values(config: BackwardConfig) -> Values:
    return {"deterministic": config.deterministic}
