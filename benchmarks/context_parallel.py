"""What context-parallel attention has to reach on two H200 of one host, held against run files of `attention-cp`.

    python benchmarks/context_parallel.py FILE [FILE ...]

A line for each target that a file has a row of: the fastest of our forms over our own kernel on one GPU, and over torch's
`context_parallel`, from rounds of the same run; with what was predicted before anything had run on two GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.record import Record, Run
from attnbench.stats.ratio import paired_ratio
from attnbench.store.runfile import read

OURS = ("cp-allgather", "cp-ring", "cp-ulysses")


@dataclass(frozen=True, slots=True)
class Target:
    """How many times as fast as `over` the best of our forms has to be."""

    case: Mapping[str, Any]
    least: float
    aim: float
    predicted: str
    over: str = "cp-one"


def softmax(seqlen: int, causal: bool) -> dict[str, Any]:
    return {"function": "softmax", "batch": 1, "seqlen": seqlen, "nheads": 16, "nheads_kv": 16, "causal": causal}


TARGETS = (
    Target(softmax(8192, True), 1.1, 1.3, "1.1-1.35"),
    Target(softmax(8192, False), 1.35, 1.6, "1.6-1.75"),
    Target(softmax(32768, True), 1.75, 1.9, "1.82-1.90"),
    Target(softmax(32768, False), 1.85, 1.93, "1.92-1.96"),
    Target(softmax(131072, True), 1.93, 1.93, "1.95-1.98"),
    Target(softmax(131072, False), 1.95, 1.95, "1.96-1.99"),
    Target(softmax(32768, True), 1.15, 1.15, "1.4-1.5", over="cp-torch"),
    Target({"function": "hstu", "batch": 1, "seqlen": 65536, "nheads": 4, "causal": True}, 1.75, 1.9, "1.82-1.88"),
    Target({"function": "hstu", "lengths": "kuairand", "causal": True}, 1.85, 1.85, "1.93-1.98"),
)


def lines(run: Run) -> Iterator[str]:
    """What a run says of each target."""
    cases: dict[str, list[Record]] = {}
    for record in run.records:
        if record.workload == "attention-cp" and record.time:
            cases.setdefault(record.group, []).append(record)
    for target in TARGETS:
        for group, records in cases.items():
            case = records[0].case
            if case["world"] == 2 and all(case[name] == value for name, value in target.case.items()):
                yield from _line(target, group, {one.backend: one for one in records})


def _line(target: Target, group: str, records: Mapping[str, Record]) -> Iterator[str]:
    base = records.get(target.over)
    ratios = {name: paired_ratio(by_round(base), by_round(records[name])) for name in OURS if base and name in records}
    if not ratios:
        return
    best = max(ratios, key=lambda name: ratios[name].ratio)
    found, hidden = ratios[best].ratio, records[best].counters.get("hidden_percent")
    said = "missed" if found < target.least else "reached" if found < target.aim else "reached, and the aim"
    yield (
        f"{group}: {best} {found:.3f}x {target.over}, at least {target.least:g} (aim {target.aim:g}): {said}; "
        f"predicted {target.predicted}" + (f"; {hidden:.0f} % of the exchange hidden" if hidden is not None else "")
    )


def by_round(record: Record) -> dict[int, float]:
    """Its samples by their round."""
    assert record.time is not None
    return dict(zip(record.time.rounds, record.time.samples_ms, strict=True))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for line in lines(read(name)):
            print(line)
