"""Charts as PNG and SVG, drawn without a browser from the definitions that the HTML page embeds."""

from __future__ import annotations

import json

from attnbench.report.charts.base.figure import Figure, Spec
from attnbench.report.charts.base.ink import config

WIDTH = 760
"Pixels of a picture at scale 1."
SCALE = 2.0
VERSION = "6.4"
FONT = "Liberation Sans, Arial, sans-serif"
FORMATS = ("png", "svg")


def picture(figure: Figure, kind: str) -> bytes:
    """One figure as a file: on white, with its title.

    Args:
        figure: of `report.charts.figures`.
        kind: png (twice `WIDTH` wide) or svg.
    """
    import vl_convert

    text = json.dumps(_standing_alone(figure))
    if kind == "svg":
        return vl_convert.vegalite_to_svg(text, vl_version=VERSION).encode()
    found: bytes = vl_convert.vegalite_to_png(text, vl_version=VERSION, scale=SCALE)
    return found


def _standing_alone(figure: Figure) -> Spec:
    look = config("light", FONT) | {"background": "#ffffff", "padding": 16}
    return {**figure.spec, "width": WIDTH, "title": {"text": figure.title}, "config": look}
