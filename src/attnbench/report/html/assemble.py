"""Builds the HTML file from template, style sheet, script, data and the chart library."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.presentation.block import LEGEND
from attnbench.record import Run
from attnbench.report.html.all_rows import dumps, listing
from attnbench.report.html.content import MOST_OPEN, rows_of, sections, texts_of
from attnbench.report.html.packing import pack

if TYPE_CHECKING:
    from jinja2 import Template

FOLDER = Path(__file__).parent
VEGA_LITE = "6.4"
"The version of Vega-Lite that altair 6 writes."
KINDS = {
    "winner": "Fastest by shape",
    "length": "Over sequence length",
    "serving": "A step over cached tokens, candidates and users",
    "roofline": "Roofline",
}
"Titles of charts of whole runs, in the order of the page; other kinds follow under their own names."
MOST_CHARTS = 8
"Most charts of a kind that are shown unfolded; if there are more, half as many."


def assemble(runs: Sequence[Run]) -> str:
    """Return the text of the page.

    Args:
        runs: at least one.
    """
    from markupsafe import Markup

    from attnbench.report.charts import figures
    from attnbench.report.charts.base.overlay import overlay_folder
    from attnbench.report.charts.base.style import config
    from attnbench.report.compared import compare
    from attnbench.report.html.comparison import comparison

    comparisons = compare(runs)
    drawn = figures(runs, comparisons)
    order = {run.id: place for place, run in enumerate(runs)}
    of_cases: dict[tuple[int, str], list[int]] = {}
    overview: dict[str, list[int]] = {}
    of_two: dict[str, list[int]] = {}
    for place, figure in enumerate(drawn):
        if figure.run is None:
            of_two.setdefault(figure.folder, []).append(place)
        elif figure.case_id is None:
            overview.setdefault(figure.kind, []).append(place)
        else:
            of_cases.setdefault((order[figure.run], figure.case_id), []).append(place)
    parts = sections(runs, of_cases)
    beside = [comparison(one, parts[0].anchors, of_two.get(overlay_folder(one), ())) for one in comparisons]
    scripts = {"library": _library(), "script": _script()}
    return _template().render(
        title=" and ".join(dict.fromkeys(run.suite for run in runs)),
        sections=parts,
        comparisons=beside,
        overview=[(KINDS.get(kind, kind), overview[kind]) for kind in sorted(overview, key=_place)],
        names={part.run.id: part.name for part in parts},
        figures=drawn,
        rows_of=rows_of,
        texts_of=texts_of,
        most_charts=MOST_CHARTS,
        unfolded=sum(len(part.cases) for part in parts) <= MOST_OPEN,
        legend=LEGEND,
        rows=Markup(dumps(listing(parts))),
        packed=Markup(dumps(pack(drawn))),
        config=Markup(dumps(config("page"))),
        style=Markup(_style()),
        policy=_policy(scripts.values()),
        **{name: Markup(text) for name, text in scripts.items()},
    )


def _place(kind: str) -> int:
    return list(KINDS).index(kind) if kind in KINDS else len(KINDS)


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    return environment.get_template("page.jinja")


def _style() -> str:
    return (FOLDER / "style.css").read_text("utf-8")


def _script() -> str:
    return (FOLDER / "page.js").read_text("utf-8")


@cache
def _library() -> str:
    """Return vega, vega-lite and vega-embed as one script.

    `vega.js` was made with vl-convert (`tests/report/test_page.py` compares them); a page only needs the script,
    and vl-convert is 84 MB.
    """
    # A closing script tag would end the script element, and these two sequences start a comment.  In the JavaScript
    # they only occur in strings, where the backslash changes nothing.
    bundle = (FOLDER / "vega.js").read_text("utf-8")
    return re.sub(r"<(?=/script|script|!--)", r"\\x3c", bundle, flags=re.I)


def _policy(scripts: Iterable[str]) -> str:
    """Return the content security policy: only these scripts run, and nothing is fetched."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    # Vega sets inline styles; with images and fonts blocked, a style cannot fetch anything.
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
