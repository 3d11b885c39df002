"""Chart specs packed for the page: shared parts and tables are written once, tables as columns and rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attnbench.report.charts import Figure

Packed = dict[str, Any]


def pack(figures: Sequence[Figure]) -> Packed:
    """What the page's script puts together again (``spec`` in page.js).

    Returns:
        ``templates``: specs without data or height, each once; ``tables``: columns and rows, each once;
        ``figures``: of each figure its template, its outer height and its tables by name, by place in the lists.
    """
    templates, tables = _Once(), _Once()
    packed = []
    for figure in figures:
        rest = {name: value for name, value in figure.spec.items() if name not in ("datasets", "height")}
        data = {name: tables.place(_table(rows)) for name, rows in figure.spec.get("datasets", {}).items()}
        packed.append([templates.place(rest), figure.outer_height, data])
    return {"templates": templates.items, "tables": tables.items, "figures": packed}


class _Once:
    """A list of JSON data in which equals have one place."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, item: Any) -> int:
        place = self._places.setdefault(json.dumps(item, ensure_ascii=False), len(self.items))
        if place == len(self.items):
            self.items.append(item)
        return place


def _table(rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Names of the columns, then the rows; a row that lacks a name has a gap in it, told from null by its length."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if any(len(row) != len(names) for row in rows):
        return [None, *rows]
    return [names, *([row[name] for name in names] for row in rows)]
