"""Rows of the tables of ranking steps: runs of the suites `hstu-serving` with every timer, and the layers alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnbench.presentation.block import backend_name
from attnbench.presentation.reconcile import reconcile
from attnbench.presentation.serving import end_to_end, hit_share, of_the_device
from attnbench.record import Record, Run

GRAPH, EAGER, BASE = "serving-paged[graph]", "serving-paged", "serving-paged[no-cache+graph]"
GATHERED, EAGER_BASE = "serving-gathered[hstu-triton+graph]", "serving-paged[no-cache]"
SWEEP = (
    "users × candidates",
    "cached tokens",
    "p50",
    "on the GPU",
    "requests/s",
    "gathered, on the GPU",
    "no cache, on the GPU",
    "speed over no cache",
    "launch by launch, p50",
    "no cache, launch by launch, p50",
)
HOST_HITS = ("users × candidates", "cached tokens", "reload", "recompute", "auto", "auto over the better", "no cache")
POOL = (
    "users",
    "candidates",
    "pool holds",
    "found",
    "evicted in 8 steps",
    "a step, p50",
    "on the GPU",
    "speed over no cache",
)
STEPS = ("users × candidates", "cached tokens", "steps", "p50", "p95", "p99", "p99 over p50", "host p50")
EXPLAINED = (
    "users × candidates",
    "row",
    "attention",
    "step predicted",
    "measured",
    "difference",
    "of it gaps",
    "clock",
    "unexplained",
)
STACK = ("layers", "users", "history, mean", "candidates", "rows", "time", "TFLOP/s", "rows/s")


def sweep_rows(runs: Iterable[Run]) -> list[list[str]]:
    """A line for each case of the sweep that finds all cached tokens on the device, of the least and most candidates."""
    found = []
    for case, rows in sorted(_cases(runs), key=lambda one: _shape(one[0])):
        if case["cache"] != "gpu-hit" or case["num_candidates"] not in (128, 1024):
            continue
        graph = rows.get(GRAPH)
        found.append(
            [
                _users(case),
                str(case["cached"]),
                _whole(graph),
                _device(graph),
                _rate(graph),
                _device(rows.get(GATHERED)),
                _device(rows.get(BASE)),
                _speed(graph),
                _whole(rows.get(EAGER)),
                _whole(rows.get(EAGER_BASE)),
            ]
        )
    return found


def host_hit_rows(run: Run) -> list[list[str]]:
    """A line for each shape: what bringing back and computing again took, and what was chosen between them."""
    shapes: dict[tuple[int, ...], dict[str, Any]] = {}
    for case, rows in _cases([run]):
        if case["cache"] != "host-hit":
            continue
        one = shapes.setdefault(_shape(case), {"case": case, "base": rows.get(BASE)})
        one[case["on_host_hit"]] = rows.get(GRAPH)
    found = []
    for _, one in sorted(shapes.items()):
        times = {how: end_to_end(one[how]) for how in ("reload", "recompute", "auto") if one.get(how)}
        medians = {how: time.median_ms for how, time in times.items() if time and time.median_ms}
        better = min((medians[how] for how in ("reload", "recompute") if how in medians), default=None)
        over = f"{medians['auto'] / better:.3f}×" if better and "auto" in medians else ""
        cells = [_whole(one.get(how)) for how in ("reload", "recompute", "auto")]
        found.append([_users(one["case"]), str(one["case"]["cached"]), *cells, over, _whole(one["base"])])
    return found


def pool_rows(run: Run) -> list[list[str]]:
    """A line for each size of the pool; times are of one of the steps of a series."""
    found = []
    for case, rows in sorted(_cases([run]), key=lambda one: (*_shape(one[0]), one[0]["pool_share"])):
        record = rows.get(GRAPH)
        if record is None:
            continue
        steps = record.counters["requests"] / case["batch"]
        found.append(
            [
                str(case["batch"]),
                str(case["num_candidates"]),
                f"{100 * case['pool_share']:g} % of all users",
                f"{100 * (hit_share(record, 'hit_tokens') or 0):.0f} %",
                f"{record.counters['evicted_users']:g}",
                _whole(record, steps),
                _device(record, steps),
                _speed(record),
            ]
        )
    return found


def step_rows(run: Run) -> list[list[str]]:
    """A line for each row of a run of many steps."""
    found = []
    for record in run.records:
        time = end_to_end(record)
        if time is None or not time.median_ms or not time.p99_ms:
            continue
        cells = [_ms(value) for value in (time.median_ms, time.p95_ms, time.p99_ms)]
        over = f"{time.p99_ms / time.median_ms:.2f}"
        found.append(
            [_users(record.case), str(record.case["cached"]), str(time.num_samples), *cells, over, _ms(time.host_ms)]
        )
    return found


def explained_rows(run: Run) -> list[list[str]]:
    """A row a way to run a step, the first of each table as the reference: predicted from its attention, and measured."""
    found = []
    for case, records in _cases([run]):
        for row in (row for table in reconcile([*records.values()], run.settings.baseline) for row in table):
            shares = {name: f"{100 * ms / row.step_ms:+.1f} %" for name, ms in row.residues.items()}
            found.append(
                [
                    _users(case),
                    f"`{backend_name(row.record)}`",
                    _ms(row.attention_ms),
                    _ms(row.predicted_ms),
                    _ms(row.step_ms),
                    "" if row.difference is None else f"{100 * row.difference:+.1f} %",
                    *(shares.get(name, "") for name in ("gaps", "clock", "unexplained")),
                ]
            )
    return found


def stack_rows(path: Path) -> list[list[str]]:
    """The one line of `serving_stack.py`."""
    data = json.loads(path.read_text("utf-8"))
    users = len(data["histories"])
    candidates = (data["rows"] - sum(data["histories"])) // users
    return [
        [
            "5",
            str(users),
            f"{sum(data['histories']) / users:g}",
            str(candidates),
            str(data["rows"]),
            _ms(data["ms"]),
            f"{data['tflops']:.0f}",
            f"{data['tokens_per_s'] / 1e6:.1f} M",
        ]
    ]


def _cases(runs: Iterable[Run]) -> list[tuple[dict[str, Any], dict[str, Record]]]:
    """Cases with the timed records of their rows."""
    found: dict[str, tuple[dict[str, Any], dict[str, Record]]] = {}
    for run in runs:
        for record in run.records:
            if record.time:
                found.setdefault(record.case_id, (dict(record.case), {}))[1][backend_name(record)] = record
    return list(found.values())


def _shape(case: dict[str, Any]) -> tuple[int, ...]:
    return case["batch"], case["num_candidates"], case["cached"]


def _users(case: Any) -> str:
    return f"{case['batch']} × {case['num_candidates']}"


def _whole(record: Record | None, steps: float = 1) -> str:
    time = end_to_end(record) if record else None
    return _ms(time.median_ms / steps if time and time.median_ms else None)


def _device(record: Record | None, steps: float = 1) -> str:
    time = of_the_device(record) if record else None
    return _ms(time.median_ms / steps if time and time.median_ms else None)


def _rate(record: Record | None) -> str:
    time = end_to_end(record) if record else None
    return f"{1e3 * record.counters['requests'] / time.median_ms:.0f}" if record and time and time.median_ms else ""


def _speed(record: Record | None) -> str:
    speedup = record.speedup if record else None
    return f"{speedup.ratio:.2f}×" if speedup and speedup.ratio else ""


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} ms"
