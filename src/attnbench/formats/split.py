"""Split a run by the values of case axes, one part per file."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.errors import unknown
from attnbench.record import Run

LONGEST = 40


def split(run: Run, axes: Sequence[str]) -> dict[str, Run]:
    """Return the parts of `run` by the values of its cases on `axes`; keys such as ``dtype-bf16.causal-true``.

    Raises:
        UsageError: no case of the run has such an axis.
    """
    axes = [axis.replace("-", "_") for axis in axes]
    known = {name for record in run.records for name in record.case}
    for axis in axes:
        if axis not in known:
            raise unknown("export", "by", axis, known)
    labels = _Labels()
    members: dict[str, list[int]] = {}
    for index, record in enumerate(run.records):
        label = ".".join(f"{axis}-{labels.of(axis, record.case.get(axis))}" for axis in axes)
        members.setdefault(label, []).append(index)
    return {label: _part(run, indices) for label, indices in members.items()}


def part_path(path: str | Path, label: str) -> Path:
    """Return the path of the part `label` of an export to `path`: ``name.dtype-bf16.csv``."""
    path = Path(path)
    return path.with_name(f"{path.stem}.{label}{path.suffix}") if label else path


def _part(run: Run, indices: Sequence[int]) -> Run:
    records = tuple(run.records[index] for index in indices)
    cases = {record.case_id for record in records}
    return dataclasses.replace(run, records=records, plan=tuple(item for item in run.plan if item.case_id in cases))


class _Labels:
    """Values as parts of file names, different for different values."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], str] = {}

    def of(self, axis: str, value: Any) -> str:
        spelled = json.dumps(value, sort_keys=True)
        label = short = _slug(value)
        count = 1
        while self._values.setdefault((axis, label), spelled) != spelled:
            count += 1
            label = f"{short}.{count}"
        return label


def _slug(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value).replace("null", "none")
    if isinstance(value, list | tuple | Mapping):
        value = json.dumps(value)
    return re.sub(r"[^A-Za-z0-9.]+", "_", str(value)).strip("_.")[:LONGEST] or "empty"
