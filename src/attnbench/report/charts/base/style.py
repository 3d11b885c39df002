"""Colours, marker shapes, dashes and fonts of all charts; a backend has one style everywhere on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.presentation.block import backend_name
from attnbench.record import Run

COLOURS = ("#1395ec", "#a0920d", "#8e4cf0", "#c46d64", "#307e7e", "#ef3994", "#616f2a", "#be55b4")
"""Each has a contrast of at least 3:1 on white and dark pages and is distinguishable with each kind of dichromacy
(colour blindness); found by search, verified by a test."""
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right")
"Their number is coprime to that of the colours, so a pair is repeated only after 56 backends."
DASHES = ((1, 0), (6, 2), (2, 2))
"Change after each round of colours: the first eight backends have solid lines."

PLAIN = "#8c959f"
"For rules and roofs, which belong to no backend; readable on light and dark pages."

THEMES = {
    "page": {"text": "currentColor", "quiet": "currentColor", "grid": "currentColor"},
    "light": {"text": "#1f2328", "quiet": "#59636e", "grid": "#e3e7eb"},
    "dark": {"text": "#e6edf3", "quiet": "#9aa4af", "grid": "#30363d"},
}
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Style:
    """Colour, marker shape and dash of one backend."""

    colour: str
    shape: str
    dash: tuple[int, int]

    @property
    def text_on_it(self) -> str:
        """Black or white, whichever has more contrast on the colour."""
        return "#000000" if luminance(self.colour) > 0.179 else "#ffffff"


class Styles:
    """The styles of a page, assigned in the order in which its runs name backends."""

    def __init__(self, runs: Sequence[Run]) -> None:
        names = dict.fromkeys(backend_name(record) for run in runs for record in run.records if record.time)
        self._places = {name: place for place, name in enumerate(names)}

    def of(self, name: str) -> Style:
        """The style of a backend."""
        place = self._places.setdefault(name, len(self._places))
        return Style(
            colour=COLOURS[place % len(COLOURS)],
            shape=SHAPES[place % len(SHAPES)],
            dash=DASHES[place // len(COLOURS) % len(DASHES)],
        )


def config(mode: str, font: str = FONT) -> dict[str, Any]:
    """Return Vega-Lite's config: colours and fonts that our specs leave to the place where they are shown.

    Args:
        mode: ``light`` or ``dark``; or ``page``, whose SVG uses the colour of the surrounding text.
        font: CSS families.
    """
    theme = THEMES[mode]
    text, quiet, grid = theme["text"], theme["quiet"], theme["grid"]
    soft, faint = (0.7, 0.15) if mode == "page" else (1.0, 1.0)
    return {
        "background": "transparent",
        "font": font,
        "view": {"stroke": None, "continuousWidth": 560, "continuousHeight": 260},
        "axis": {
            "labelColor": text, "titleColor": quiet, "titleFontWeight": "normal", "titleFontSize": 12,
            "labelFontSize": 12, "gridColor": grid, "domainColor": grid, "tickColor": grid, "titlePadding": 8,
            "gridOpacity": faint, "domainOpacity": faint, "tickOpacity": faint, "titleOpacity": soft,
            "labelLimit": 190, "labelSeparation": 6,
        },
        "title": {"color": text, "subtitleColor": quiet, "anchor": "start", "fontSize": 14, "subtitleFontSize": 12,
                  "fontWeight": 600, "offset": 12, "frame": "group"},
        "legend": {"labelColor": text, "labelFontSize": 12, "titleColor": quiet},
        "text": {"color": text, "fontSize": 12},
        "style": {
            "label": {"color": text, "fontSize": 12},
            "note": {"color": quiet, "fontSize": 11, "fillOpacity": soft},
        },
    }  # fmt: skip


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, as WCAG 2 defines it; 0 to 1."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
