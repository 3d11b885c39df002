"""Groups cases into panels: the cases of one line differ in the axis, and in fields that change with it.

A suite that keeps the number of tokens constant has another batch at each length.  The batch then follows
the length, and the chart says so, instead of having lines of one point each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.report.charts.base.data import Table
from attnbench.report.charts.base.figure import slug

LENGTH = "seqlen"
ALWAYS_SAID = "causal"
"Always in the name of a file, as in the names of the seed documents' scripts."
FOLLOWERS = ("seqlen_k", "scaling_seqlen", "batch", "nheads", "nheads_kv", "headdim_v", "linear_dim")
"Fields that usually follow another one (the length, the head size): if one of two is to be named, it is the other."

LONGEST = 48
"Characters that fit below an axis of a narrow plot."


Lost = tuple[str, Mapping[str, Any]]
"Workload and case of what has no point."


@dataclass(frozen=True, slots=True)
class Panel:
    """Tables of one chart over an axis."""

    tables: Sequence[Table]
    fixed: Mapping[str, Any]
    "fields that differ within the run but not within this panel"
    following: Mapping[str, Sequence[Any]]
    "fields that change with the chart's axis, with their values in its order"

    @property
    def words(self) -> str:
        """The part of the shape specific to this chart: ``causal, headdim 128``; empty if all cases share it."""
        return ", ".join(axis_words(name, value) for name, value in self.fixed.items())

    @property
    def goes_with(self) -> str:
        """Fields that change along the axis: ``batch 16, 4, 1``; if they are many, only names, or some of them."""
        whole = "; ".join(f"{name} {', '.join(map(_brief, values))}" for name, values in self.following.items())
        if len(whole) <= LONGEST:
            return whole
        names = list(self.following)
        more = len(names) - 3
        return "with " + ", ".join(names[:3]) + (f" and {more} more ax{'i' if more == 1 else 'e'}s" if more > 0 else "")

    @property
    def ending(self) -> str:
        """End of its file name: ``_causal_true``, then other fields that differ within the run."""
        causal = self.tables[0].case.get(ALWAYS_SAID)
        parts = [] if causal is None else [f"_{ALWAYS_SAID}_{slug(causal)}"]
        parts += [f"_{slug(name)}{slug(value)}" for name, value in self.fixed.items() if name != ALWAYS_SAID]
        return "".join(parts)


def lost_places(panel: Panel, axis: str, lost: Iterable[Lost]) -> list[Any]:
    """Return values of `axis` without a table, in cases that otherwise equal the panel's own in all its fixed fields.

    Args:
        panel: over `axis`.
        axis: field of the case.
        lost: workload and case of each without a table.
    """
    first, cases = panel.tables[0], [table.case for table in panel.tables]
    shared = {
        name: value for name, value in first.case.items() if name != axis and all(c.get(name) == value for c in cases)
    }
    return [
        case[axis]
        for workload, case in lost
        if workload == first.workload and axis in case and all(case.get(name) == shared[name] for name in shared)
    ]


def panels(tables: Sequence[Table], axis: str | None, keep: Iterable[str] = ()) -> list[Panel]:
    """Group tables into charts over `axis`, in the order of the run.

    Args:
        tables: of one workload, measured under the same conditions.
        axis: field of the case; None for a chart over a measured quantity.
        keep: fields that never follow.
    """
    varying = differing(tables)
    key = [name for name in varying if name != axis]
    following: list[str] = []
    for name in sorted(key, key=lambda one: FOLLOWERS.index(one) if one in FOLLOWERS else len(FOLLOWERS)):
        if name in keep or not all(_is_number(table.case.get(name)) for table in tables):
            continue
        fewer = [one for one in key if one != name]
        if axis is not None and len({_key(table, [*fewer, axis]) for table in tables}) == len(tables):
            key, following = fewer, [*following, name]
    groups: dict[tuple[str, ...], list[Table]] = {}
    for table in tables:
        groups.setdefault(_key(table, key), []).append(table)
    return [_panel(members, key, following, axis) for members in groups.values()]


def differing(tables: Sequence[Table]) -> list[str]:
    """Return the fields of which the cases have several values, without those that depend on others (`named`)."""
    return named([table.case for table in tables])


def named(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields that distinguish `cases`.

    Fields that equal an earlier one in every case (seqlen_k beside seqlen) are omitted, and so are fractions that
    follow from an integer (alpha = 1/sqrt(attn_dim)), because the integer identifies the shape.
    """
    columns: dict[tuple[str, ...], str] = {}
    for name in dict.fromkeys(name for case in cases for name in case):
        columns.setdefault(tuple(_text(case.get(name)) for case in cases), name)
    varying = {name: values for values, name in columns.items() if len(set(values)) > 1}
    whole = [values for name, values in varying.items() if all(_is_whole(case.get(name)) for case in cases)]
    return [name for name, values in varying.items()
            if not (any(isinstance(case.get(name), float) for case in cases)
                    and any(len(set(zip(one, values, strict=True))) == len(set(one)) for one in whole))]  # fmt: skip


def axis_words(name: str, value: Any) -> str:
    """Format a value of a field: causal, not causal, headdim 128, bf16, no grid."""
    if value is None:
        return f"no {name}"
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return str(value) if name in ("dtype", "mode") else f"{name} {value}"


def _panel(members: list[Table], key: Sequence[str], following: Sequence[str], axis: str | None) -> Panel:
    if axis is not None and all(_is_number(table.case.get(axis)) for table in members):
        members = sorted(members, key=lambda table: table.case[axis])
    # The number of keys is not mentioned if it equals that of queries.
    varying = [
        name for name in following if any(table.case.get(name) != table.case.get(axis or "") for table in members)
    ]
    return Panel(
        tables=members,
        fixed={name: members[0].case.get(name) for name in key},
        following={name: values for name in varying
                   if len(set(values := [table.case.get(name) for table in members])) > 1},
    )  # fmt: skip


def _key(table: Table, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(_text(table.case.get(name)) for name in names)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _brief(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
