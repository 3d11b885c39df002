"""A race as rows, one per configuration, for CSV and JSON, including failures."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.stats.race_data import Outcome
from attnbench.tune.race_file import RaceFile
from attnbench.tune.space import short_of

COLUMNS = (
    "backend",
    "config",
    "case",
    "seqlen",
    "ended",
    "stage",
    "ratio_to_pick",
    "ci_low",
    "ci_high",
    "median_ms",
    "tflops",
    "relative_performance",
    "samples",
    "reason",
)


def rows(kept: RaceFile, outcome: Outcome) -> list[dict[str, Any]]:
    """Return one row per configuration, the pick first, failures last, and then the references.

    ``ratio_to_pick`` is the time over the pick's; ``ended`` is picked, final, cut, dropped, reference, or the status of
    a failure; unknown values are None.  ``relative_performance`` is the time of the first reference with a time over
    the row's, in percent.
    """
    common = {"backend": kept.backend, "case": kept.case_id, "seqlen": kept.case.get("seqlen")}
    full = next((one.ratio for one in kept.references.values() if one.ratio is not None), None)

    def relative(ratio: float | None) -> float | None:
        return None if full is None or ratio is None else 100 * full / ratio

    found = []
    for one in outcome.standings:
        tflops = None if kept.flops is None else kept.flops / one.median_ms / 1e9
        found.append(
            dict.fromkeys(COLUMNS)
            | common
            | {
                "config": short_of(one.name),
                "ended": one.ended,
                "stage": one.stage,
                "ratio_to_pick": one.ratio,
                "ci_low": one.ci_low,
                "ci_high": one.ci_high,
                "median_ms": one.median_ms,
                "tflops": tflops,
                "relative_performance": relative(one.ratio),
                "samples": one.rounds,
                **_flat(kept.configs[one.name]),
            }
        )
    for name, other in kept.references.items():
        tflops = None if kept.flops is None or other.median_ms is None else kept.flops / other.median_ms / 1e9
        found.append(
            dict.fromkeys(COLUMNS)
            | common
            | {
                "backend": name,
                "config": "default",
                "ended": "reference",
                "ratio_to_pick": other.ratio,
                "ci_low": other.ci_low,
                "ci_high": other.ci_high,
                "median_ms": other.median_ms,
                "tflops": tflops,
                "relative_performance": relative(other.ratio),
                "samples": other.rounds,
                "reason": other.reason,
            }
        )
    for name, failure in kept.failures.items():
        found.append(
            dict.fromkeys(COLUMNS)
            | common
            | {"config": short_of(name), "ended": failure.status, "reason": failure.reason, **_flat(kept.configs[name])}
        )
    return found


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; fields of configurations follow the fixed columns, blank for rows without them."""
    fields = list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
    return text.getvalue()


def to_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a JSON list."""
    return json.dumps([dict(row) for row in rows], indent=1, ensure_ascii=False) + "\n"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``{"forward": {"warps": 8}}`` as ``{"forward.warps": 8}``; names equal to fixed columns get a prefix."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            whole = f"{prefix}{name}"
            flat[f"config.{whole}" if whole in COLUMNS else whole] = value
    return flat
