"""A chart as data (`Figure`), and the interface of the files that make charts (`Chart`)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from attnbench.record import Run

if TYPE_CHECKING:
    from attnbench.report.charts.base.data import RunData
    from attnbench.report.charts.base.style import Styles

Spec = dict[str, Any]

LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart: a Vega-Lite description with its data, and its texts."""

    name: str
    "stem of its file name; with `folder` unique among the figures of a page"
    kind: str
    "name of the file in `report/charts` that made it, or plot"
    title: str
    "plain text, not part of `spec`: a page prints it as its heading"
    alt: str
    "text alternative: what a reader who does not see the chart must know"
    spec: Spec
    """Vega-Lite 6 without $schema and config; ``height`` is the plot's, ``usermeta.around`` that of axes and titles.
    It shares parts with other figures, so it must not be changed in place.  Colours of text and lines come from
    `style.config`."""
    case_id: str | None = None
    "of its case; None if it belongs to the whole run"
    run: str | None = None
    "id of the run"
    folder: str = ""
    "below the folder of plots"

    @property
    def stem(self) -> str:
        """Path of its file below the folder of plots, without the extension."""
        return f"{self.folder}/{self.name}" if self.folder else self.name

    @property
    def outer_height(self) -> int:
        """Pixels of the whole chart on a page: the plot with its axes, titles and legend."""
        return round(self.spec["height"] + self.spec["usermeta"]["around"])

    def of_run(self, run: str, place: str) -> Figure:
        """Return the same figure as one of the run `run`, with image files in the folder `place`."""
        return dataclasses.replace(self, run=run, folder="/".join(filter(None, (place, self.folder))))


@dataclass(frozen=True, slots=True)
class Chart:
    """The ``CHART`` that a file of `report/charts` defines."""

    rank: int
    "position on the page; charts of the whole run come before those of a case"
    draw: Callable[[RunData, Styles], Iterable[Figure]]
    "returns the figures of one run; none if they would show nothing"


def run_folders(runs: Sequence[Run]) -> list[str]:
    """Return a folder for the images of each run, named by its id; empty for a single run."""
    taken: set[str] = set()
    return [unique(slug(run.id), taken) for run in runs] if len(runs) > 1 else [""] * len(runs)


def unique(name: str, taken: set[str]) -> str:
    """Return `name`, with a number if it is taken; case-insensitive, as some file systems are."""
    names = chain((name,), (f"{name}-{number}" for number in count(2)))
    found = next(one for one in names if one.casefold() not in taken)
    taken.add(found.casefold())
    return found


def slug(value: Any) -> str:
    """Convert `value` to a part of a file name: true, 128, bf16, actual_sparsity."""
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_.-")[:LONGEST_NAME] or "unnamed"


def short(value: float | None, digits: int = 5) -> float | None:
    """Round a number to the digits that a chart can show, as a page contains many thousands of them."""
    return None if value is None else float(f"{value:.{digits}g}")


def row(**values: Any) -> dict[str, Any]:
    """Return one datum; unknown values are omitted, never 0."""
    return {name: value for name, value in values.items() if value is not None}


def filled(spec: Mapping[str, Any], datasets: Mapping[str, list[dict[str, Any]]], **top: Any) -> Spec:
    """Return a definition with its data and the top-level fields that differ between charts."""
    return {**spec, **top, "datasets": dict(datasets)}
