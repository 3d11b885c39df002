"""Packs chart specs for the page: shared parts and tables are stored once, tables as columns and rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attnbench.report.charts import Figure

Packed = dict[str, Any]


def pack(figures: Sequence[Figure]) -> Packed:
    """Return data from which the page's script reconstructs the specs (``spec`` in page.js).

    Returns:
        ``templates``: unique specs without data or height; ``tables``: unique tables, as columns and rows;
        ``figures``: for each figure its template, its outer height and its tables by name, as indices of the lists.
    """
    templates, tables = _Once(), _Once()
    packed = []
    for figure in figures:
        rest = {name: value for name, value in figure.spec.items() if name not in ("datasets", "height")}
        data = {name: tables.place(_table(rows)) for name, rows in figure.spec.get("datasets", {}).items()}
        packed.append([templates.place(rest), figure.outer_height, data])
    return {"templates": templates.items, "tables": tables.items, "figures": packed}


class _Once:
    """A list of JSON data without duplicates."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, item: Any) -> int:
        place = self._places.setdefault(json.dumps(item, ensure_ascii=False), len(self.items))
        if place == len(self.items):
            self.items.append(item)
        return place


def _table(rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the column names, then the rows; missing values are gaps, distinguished from null by the row's length."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if any(len(row) != len(names) for row in rows):
        return [None, *rows]
    return [names, *([row[name] for name in names] for row in rows)]
