"""Names of dense HSTU configurations: ``f…`` for the forward, ``a…`` or ``deterministic…`` for the backward.

A name says what differs from the tuned default, in the spelling of `configs`: ``f128x64w8s3-ahead`` changes tiles and
order of the forward, ``a…`` the backward that accumulates dQ by atomics, ``deterministic-c…`` and ``deterministic-r…`` the
two kernels of the deterministic backward.  Imports neither torch nor Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.kernels.hstu.dense.configs import (
    ColumnConfig,
    ForwardConfig,
    RowConfig,
    backward_config,
    forward_config,
    hopper_columns_config,
    hopper_columns_fault,
    hopper_fault,
    hopper_forward_config,
)
from attnbench.kernels.shared.configs import nearest
from attnbench.kernels.shared.family import Family, Part, Values
from attnbench.kernels.shared.tiling import Grid

_Kind = type[ForwardConfig] | type[ColumnConfig] | type[RowConfig]
_Tiles = tuple[int, int, int, int]
KERNELS: dict[str, tuple[str, _Kind]] = {
    "f": ("forward", ForwardConfig),
    "a": ("atomic", ColumnConfig),
    "deterministic-c": ("columns", ColumnConfig),
    "deterministic-r": ("rows", RowConfig),
}
"""Kernel and type of a configuration, by the beginning of its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Properties of a case and its card that the configurations depend on."""

    attn_dim: int
    linear_dim: int
    item_bytes: int = 2
    seqlen: int = 1 << 20
    capability: tuple[int, int] = (9, 0)
    grid: Grid | None = None
    "as `configs.triangle_grid`"
    pairs: int = 1
    "heads of all sequences"

    @property
    def dim(self) -> int:
        """The larger of both dims."""
        return max(self.attn_dim, self.linear_dim)

    @property
    def width(self) -> int:
        """Its row in the tables below."""
        return next((width for width in _WHOLE if self.dim <= width), max(_WHOLE))


# Rows, keys, warps, stages that compile for sm_90 and fit, by the largest dims for which they do.
_WHOLE: dict[int, tuple[_Tiles, ...]] = {
    64: (
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (64, 128, 4, 2),
        (128, 32, 8, 3),
        (128, 64, 8, 2),
        (128, 64, 8, 3),
        (128, 64, 8, 4),
        (128, 128, 8, 2),
        (128, 128, 8, 3),
    ),
    128: (
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (128, 32, 8, 3),
        (128, 64, 8, 2),
        (128, 64, 8, 3),
        (128, 64, 8, 4),
        (128, 128, 8, 2),
    ),
    256: ((64, 64, 4, 2), (128, 32, 8, 2), (128, 32, 8, 3), (128, 64, 8, 2)),
}
_ROWS = _WHOLE | {256: ((64, 64, 4, 2), (128, 32, 8, 2))}
_COLUMNS: dict[int, tuple[_Tiles, ...]] = {
    64: (
        (32, 64, 4, 2),
        (32, 64, 8, 2),
        (32, 128, 8, 2),
        (64, 64, 4, 2),
        (64, 64, 8, 2),
        (64, 128, 8, 1),
        (64, 128, 8, 2),
        (64, 128, 8, 3),
        (128, 64, 8, 2),
    ),
    128: (
        (32, 64, 4, 2),
        (32, 64, 8, 2),
        (32, 128, 8, 2),
        (64, 64, 8, 1),
        (64, 64, 8, 2),
        (64, 128, 8, 1),
        (64, 128, 8, 2),
        (64, 128, 8, 3),
    ),
    256: ((32, 64, 8, 2), (32, 128, 8, 2), (64, 64, 8, 1), (64, 64, 8, 2)),
}
_ATOMIC = _COLUMNS | {256: ((32, 64, 8, 1), (32, 64, 8, 2), (64, 64, 8, 1))}
# For the Hopper kernels: no spills in the loop, and one program fits on an SM.
_HOPPER: dict[int, tuple[_Tiles, ...]] = {
    64: (
        (128, 64, 8, 3),
        (128, 64, 8, 6),
        (128, 128, 8, 2),
        (128, 128, 8, 3),
        (192, 64, 12, 3),
        (192, 64, 12, 4),
        (192, 64, 12, 6),
        (192, 64, 12, 8),
    ),
    128: ((128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (192, 64, 12, 2), (192, 64, 12, 3)),
    256: ((128, 64, 8, 2),),
}
_HOPPER_ATOMIC: dict[int, tuple[_Tiles, ...]] = {
    64: ((64, 128, 8, 2), (64, 128, 8, 3), (64, 128, 8, 4)),
    128: ((64, 128, 8, 2), (64, 128, 8, 3)),
    256: ((64, 64, 8, 2),),
}
_SERIAL: dict[int, tuple[_Tiles, ...]] = _HOPPER_ATOMIC | {128: ((64, 128, 8, 2),), 256: ()}
"""The same with serial, whose rounded dQ takes shared memory."""


PARTS = (2, 3, 4)
"Parts of the keys, for few query tiles."


class _Part(Part[Shape]):
    def read(self, text: str, shape: Shape) -> Values:
        there = self.space(shape)
        if text in there:
            return there[text]
        values = _read(text)
        if text != self.default(shape):
            raise ValueError(f"is not known; one of the {len(there)} listed for this shape")
        return values

    def check(self, text: str, shape: Shape) -> None:
        if fault := _fault(self.read(text, shape), shape):
            raise ValueError(f"has the order ws, which {fault}" + "; another order" * ("; " not in fault))

    def nearest(self, text: str, shape: Shape) -> str:
        return nearest(text, [short for short, values in self.space(shape).items() if _fault(values, shape) is None])


class _Forward(_Part):
    side, hint = "forward", "f…"

    def begins(self, text: str) -> bool:
        return text.startswith("f")

    def space(self, shape: Shape) -> Mapping[str, Values]:
        width = shape.width
        main = ((128, 64, 8, 2 if width == 256 else 3),)
        capped = ((128, 32, 8, 2), (128, 32, 8, 3), (64, 32, 4, 3))
        narrow = (
            [
                *_changes("f", capped, registers=128, order="plain"),
                *_changes("f", main, masked_stages=2),
                *_changes("f", main, loads="pointer"),
            ]
            if width < 256
            else []
        )
        return dict(
            [
                *_changes("f", _WHOLE[width], order="plain"),
                *_changes("f", _WHOLE[width], order="ahead"),
                *_changes("f", _HOPPER[width], order="ws"),
                *(one for parts in PARTS for one in _changes("f", _HOPPER[width][-1:], order="ws", parts=parts)),
                *narrow,
                *_changes("f", main, section_mib=8.0),
                *_changes("f", main, section_mib=1000.0),
            ]
        )

    def tuned(self, shape: Shape) -> str:
        base = forward_config(shape.capability, shape.item_bytes, shape.dim, shape.seqlen)
        hopper = hopper_forward_config(
            shape.capability, shape.item_bytes, shape.attn_dim, shape.linear_dim, shape.seqlen, shape.grid
        )
        return _default("f", hopper, base)


class _Backward(_Part):
    side, hint = "backward", "a…"

    def begins(self, text: str) -> bool:
        return text.startswith(("a", "d"))

    def space(self, shape: Shape) -> Mapping[str, Values]:
        width = shape.width
        return {"deterministic": {"deterministic": True}} | dict(
            [
                *_changes("a", _ATOMIC[width]),
                *_changes("a", _HOPPER_ATOMIC[width], order="ws"),
                *(_changes("a", _HOPPER_ATOMIC[width], order="ws", lag=True) if width < 256 else ()),
                *(
                    one
                    for lag in (False, True)
                    for one in _changes("a", _SERIAL[width], order="ws", lag=lag, serial=True)
                ),
                *(_changes("a", _HOPPER_ATOMIC[width], order="ws", sums="carried") if width == 256 else ()),
                *_changes("deterministic-c", _COLUMNS[width]),
                *_changes("deterministic-r", _ROWS[width]),
            ]
        )

    def tuned(self, shape: Shape) -> str:
        base = backward_config(shape.capability, shape.item_bytes, shape.dim, shape.seqlen, deterministic=False)
        hopper = hopper_columns_config(
            shape.capability, shape.item_bytes, shape.attn_dim, shape.linear_dim, shape.seqlen, shape.pairs
        )
        return _default("a", hopper, base.columns)


FAMILY = Family((_Forward(), _Backward()))


def _fault(values: Values, shape: Shape) -> str | None:
    """Why a Hopper kernel that a name asks for cannot run on the shape's card; None if it can."""
    facts: dict[str, Any] = {
        "capability": shape.capability,
        "item_bytes": shape.item_bytes,
        "attn_dim": shape.attn_dim,
        "linear_dim": shape.linear_dim,
    }
    forward, columns = values.get("forward", {}), values.get("atomic", {})
    if forward.get("order") == "ws":
        return hopper_fault(ForwardConfig(**forward), **facts)
    return hopper_columns_fault(ColumnConfig(**columns, atomic=True), **facts) if columns.get("order") == "ws" else None


def _changes(lead: str, tiles: Iterable[_Tiles], **more: Any) -> list[tuple[str, dict[str, Any]]]:
    """Names and what they change: the tiles of one kernel, and other fields of it."""
    kernel, kind = KERNELS[lead]
    said = [dict(zip(("block_m", "block_n", "warps", "stages"), one, strict=True)) | more for one in tiles]
    return [(lead + kind.spell(one), _launch(lead, kernel, one)) for one in said]


def _launch(lead: str, kernel: str, said: dict[str, Any]) -> dict[str, Any]:
    return {"deterministic": True, kernel: said} if lead.startswith("deterministic") else {kernel: said}


def _read(text: str) -> dict[str, Any]:
    lead = next((lead for lead in sorted(KERNELS, key=len, reverse=True) if text.startswith(lead)), None)
    if lead is None:
        raise ValueError("is not a name; f…, a…, deterministic, deterministic-c… or deterministic-r…")
    kernel, kind = KERNELS[lead]
    try:
        return _launch(lead, kernel, kind.read_part(text.removeprefix(lead)))
    except ValueError as why:
        # The expected spelling includes the beginning of the name.
        wrong, _, accepted = str(why).partition("; ")
        spelled = accepted if wrong.startswith("has") else accepted.replace("such as ", f"such as {lead}")
        raise ValueError(f"{wrong}; {lead + spelled if wrong == 'is not how it is spelled' else spelled}") from None


def _default(lead: str, hopper: ForwardConfig | ColumnConfig | None, base: ForwardConfig | ColumnConfig) -> str:
    """Name of the default: its tiles, and the other fields that a name with these tiles alone would change."""
    if hopper is None:
        said = {name: getattr(base, name) for name in ("block_m", "block_n", "warps", "stages")}
        return lead + base.spell(said | ({"order": base.order} if lead == "f" else {}))
    # The Hopper kernels use TMA and hold dK and dV at once, whatever these two fields are.
    changed = {
        name: value
        for name, value in hopper.values.items()
        if hopper.table()[name].always
        or name == "order"
        or (name not in ("loads", "split") and value != getattr(base, name))
    }
    return lead + hopper.spell(changed)
