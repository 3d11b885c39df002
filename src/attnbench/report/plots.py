"""Charts as PNG and SVG, drawn without a browser from the definitions embedded in the HTML page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnbench.errors import UsageError, refusal
from attnbench.record import Run
from attnbench.report.charts import figures
from attnbench.report.charts.base.by_axis import figures_over
from attnbench.report.charts.base.figure import Figure, Spec
from attnbench.report.charts.base.panels import LENGTH
from attnbench.report.charts.base.style import config
from attnbench.report.libraries import require
from attnbench.store.files import check_writable, is_file, write_bytes

WIDTH = 640
"Width of an image's plot at scale 1, pixels, without the names beside it."
SCALE = 2.0
VERSION = "6.4"
FONT = "Liberation Sans, Arial, sans-serif"
FORMATS = ("png", "svg")
WHO = "attnbench report"
LIBRARIES = ("altair", "vl_convert")
"Libraries that build and draw charts."


def add_plot_arguments(group: argparse._ArgumentGroup) -> None:
    """Add --plots and its options."""
    group.add_argument(
        "--plots", metavar="DIR", help=("write the charts as PNG and SVG, needs no browser (default: none)")
    )
    group.add_argument(
        "--x",
        metavar="NAME",
        help=(
            "with --plots: draw over this axis or measured quantity (seqlen, headdim, actual_sparsity, any column of "
            "numbers of the rows) instead of the standard set (default: the standard set; seqlen with --metric)"
        ),
    )
    group.add_argument("--metric", metavar="NAME", help=(
        "with --plots: draw this (time_ms, tflops, memory.peak_allocated_mb, any column of numbers of the rows) "
        "(default: time_ms and tflops)"))  # fmt: skip


def check_plot_arguments(who: str, args: argparse.Namespace) -> None:
    """Refuse plot options without --plots, and plots that cannot be drawn or written.

    Raises:
        UsageError: naming the flag.
        Unavailable: a library is missing; the message has the command that installs it.
    """
    for flag in ("x", "metric"):
        if getattr(args, flag) is not None and args.plots is None:
            raise UsageError(refusal(who, f"--{flag}", getattr(args, flag), "says what to plot but not where",
                                     "it goes with --plots DIR"))  # fmt: skip
    if args.plots is not None:
        _ready(Path(args.plots))


def write_plots(
    runs: Sequence[Run], folder: str | Path, *, x: str | None = None, metric: str | None = None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:  # fmt: skip
    """Draw runs into `folder`, created if it does not exist; files of the same names are replaced.

    Without `x` and `metric` every chart of the page is drawn: those of the whole run, with time and TFLOP/s over
    length in ``seq_len_plots/``, and a folder per case.

    Args:
        runs: with their statistics derived; if there are several, each has a folder named by its id.
        folder: output.
        x: a field of the cases or a column of `store.rows`, in full or its last part.
        metric: a column of `store.rows`; None: time and TFLOP/s.
        formats: file extensions, from `FORMATS`.

    Raises:
        UsageError: a name is unknown, there is nothing to draw, or a file cannot be written.
        Unavailable: a library is missing.
    """
    folder = Path(folder)
    _ready(folder)
    found = figures(runs) if x is None and metric is None else figures_over(runs, x, metric)
    if not found and x is None and metric is None:
        raise UsageError(refusal(WHO, "--plots", folder, "would stay empty, nothing was timed", "a run with times"))
    if not found:
        raise UsageError(refusal(WHO, "--x", x or LENGTH, f"has no two values with a {metric or 'time'} in one chart",
                                 "an axis of which the run has several values"))  # fmt: skip
    return list(_written(found, folder, formats))


def draw(found: Iterable[Figure], folder: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw figures into a folder, created if it does not exist.

    Raises:
        UsageError: a file cannot be written.
        Unavailable: a library is missing.
    """
    return list(_written(found, Path(folder), formats))


def check_plot_folder(who: str, folder: str | Path) -> None:
    """Refuse a folder that cannot be drawn into.

    Raises:
        UsageError: naming the folder.
        Unavailable: a library is missing; the message has the command that installs it.
    """
    _ready(Path(folder), who)


def picture(figure: Figure, ending: str) -> bytes:
    """Return one figure as a file: on white, with its title, in a fixed size.

    Args:
        figure: of `report.charts`.
        ending: png (at twice the size) or svg.
    """
    return next(pictures(figure, (ending,)))


def inline(figure: Figure) -> str:
    """Return one figure as an SVG element of a page, in the colours of the surrounding text."""
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(json.dumps(standing_alone(figure, "page")), vl_version=VERSION)
    return drawn[drawn.index("<svg") :]


def pictures(figure: Figure, endings: Sequence[str]) -> Iterator[bytes]:
    """Yield `picture` for each of `endings`; the chart itself is computed once."""
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(json.dumps(standing_alone(figure)), vl_version=VERSION)
    for ending in endings:
        yield drawn.encode() if ending == "svg" else vl_convert.svg_to_png(drawn, scale=SCALE)


def standing_alone(figure: Figure, mode: str = "light") -> Spec:
    """Return the figure's description as for an image: with title, config (of `style.config`), and a width."""
    ground = {"background": "#ffffff"} if mode == "light" else {}
    look: dict[str, Any] = config(mode, FONT) | ground | {"padding": 16}
    rest = {name: value for name, value in figure.spec.items() if name != "autosize"}
    return {**rest, "width": WIDTH, "title": {"text": figure.title}, "config": look}


def _written(found: Iterable[Figure], folder: Path, formats: Sequence[str]) -> Iterator[Path]:
    for figure in found:
        for ending, picture_of_it in zip(formats, pictures(figure, formats), strict=True):
            path = folder / f"{figure.stem}.{ending}"
            write_bytes(path, picture_of_it)
            yield path


def _ready(folder: Path, who: str = WHO) -> None:
    require(who, LIBRARIES)
    if str(folder) == "-":
        raise UsageError(refusal(who, "--plots", folder, "is stdout", "a folder, or the name of one to be made"))
    if is_file(folder):
        raise UsageError(refusal(who, "--plots", folder, "is a file", "a folder, or the name of one to be made"))
    check_writable(folder / "a.png")


__all__ = [
    "FORMATS",
    "add_plot_arguments",
    "check_plot_arguments",
    "check_plot_folder",
    "draw",
    "inline",
    "picture",
    "write_plots",
]
