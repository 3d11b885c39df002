"""Placement of labels without overlap, computed in pixels before a chart is drawn.

The height of a plot is known, its width is not. Positions are computed for a narrow plot; in a wider one
labels are further apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NARROW = 260.0
"Width of the narrowest plot for which labels are placed, pixels."
LETTER = 6.6
"Average width of a character at 12 px, pixels."
LINE = 13.0
"Height of a line of text, pixels."
OFFSET = 9.0
"Distance of a name from its marker, pixels."
LONGEST = 28
"Most characters of a name that are shown."


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a name in pixels relative to its marker; ``align`` left means right of the marker."""

    dx: float
    dy: float
    align: str


Box = tuple[float, float, float, float]
"Left, top, right, bottom."

_CHOICES = [Place(OFFSET, 0.0, "left"), Place(-OFFSET, 0.0, "right")]
_CHOICES += [Place(3.0 if align == "left" else -3.0, sign * (LINE * step + 5.0), align)
             for step in range(1, 13) for sign in (-1, 1) for align in ("left", "right")]  # fmt: skip


def scaled(values: Sequence[float], pixels: float, log: bool) -> list[float]:
    """Convert `values` to pixels along an axis that they fill."""
    there = [math.log(value) if log else value for value in values]
    low, high = min(there), max(there)
    return [pixels / 2 if high == low else pixels * (value - low) / (high - low) for value in there]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move `wanted` heights apart as little as possible, until neighbours are at least `gap` apart.

    Args:
        wanted: pixels, in any order, which is kept.
        gap: least distance of two, reduced if they do not all fit.
        low: lower limit.
        high: upper limit.
    """
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    gap = min(gap, (high - low) / max(len(wanted) - 1, 1))
    clusters: list[list[int]] = []

    def span(cluster: Sequence[int]) -> tuple[float, float]:
        half = gap * (len(cluster) - 1) / 2
        middle = sum(wanted[place] for place in cluster) / len(cluster)
        middle = min(max(middle, low + half), high - half)
        return middle - half, middle + half

    for place in order:
        clusters.append([place])
        while len(clusters) > 1 and span(clusters[-2])[1] + gap > span(clusters[-1])[0] + 1e-9:
            last = clusters.pop()
            clusters[-1] += last
    found = [0.0] * len(wanted)
    for cluster in clusters:
        first = span(cluster)[0]
        for number, place in enumerate(cluster):
            found[place] = first + gap * number
    return found


def around(
    x: Sequence[float],
    y: Sequence[float],
    names: Sequence[str],
    height: float,
    unnamed: Sequence[tuple[float, float]] = (),
) -> list[Place]:
    """Return a position for the name of each point of a scatter plot: beside it, else above or below, with a line.

    Args:
        x: pixels from the left, in a plot of width `NARROW`.
        y: pixels from the top.
        names: one per point, as drawn.
        height: of the plot.
        unnamed: other points, which names must not cover.
    """
    signs: list[Box] = [(px - 6, py - 6, px + 6, py + 6) for px, py in (*zip(x, y, strict=True), *unnamed)]
    letters, stalks = list[Box](), list[Box]()
    found = [Place(OFFSET, 0.0, "left")] * len(names)
    # From the right, so that leader lines avoid names further right, and names above are placed already.
    for own in sorted(range(len(names)), key=lambda place: (-x[place], y[place])):
        size = LETTER * len(names[own])
        others = [box for place, box in enumerate(signs) if place != own]
        best, least = _CHOICES[0], math.inf
        for choice in _CHOICES:
            if abs(choice.dy) > least:
                break  # sorted by distance, which is a lower bound of the cost
            if not choice.dy or LINE / 2 < y[own] + choice.dy < height - LINE / 2:
                cost = _cost(choice, x[own], y[own], size, others, letters, stalks)
                best, least = (choice, cost) if cost < least else (best, least)
        found[own] = best
        name, *stalk = _boxes(best, x[own], y[own], size)
        letters.append(name)
        stalks += stalk
    return found


def _boxes(choice: Place, x: float, y: float, size: float) -> list[Box]:
    """Return the boxes of the name and of its leader line, if it has one."""
    left = x + choice.dx if choice.align == "left" else x + choice.dx - size
    name = (left, y + choice.dy - LINE / 2, left + size, y + choice.dy + LINE / 2)
    if not choice.dy:
        return [name]
    ends = sorted((y + choice.dy, y + math.copysign(6.0, choice.dy)))
    return [name, (x - 1, ends[0], x + 1, ends[1])]


def _cost(
    choice: Place, x: float, y: float, size: float, signs: Sequence[Box], names: Sequence[Box], stalks: Sequence[Box]
) -> float:
    name, *stalk = _boxes(choice, x, y, size)
    hits = sum(_meet(name, other) for other in (*signs, *names, *stalks))
    hits += sum(_meet(one, other) for one in stalk for other in names)
    # If markers overlap, their leader lines do too, which is harmless as long as the names are apart.
    crossed = sum(_meet(one, other) for one in stalk for other in (*signs, *stalks))
    outside = max(0.0, -name[0]) + max(0.0, name[2] - NARROW - 90.0)
    return 1000.0 * hits + 10.0 * crossed + 20.0 * outside + abs(choice.dy) + (6.0 if choice.align == "right" else 0.0)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def shortened(name: str, longest: int = LONGEST) -> str:
    """Shorten `name` with an ellipsis if a chart has no room for it."""
    return name if len(name) <= longest else name[: longest - 1] + "…"
