"""What context-parallel attention has to reach on two H200 of one host, held against run files of `attention-cp`.

    python benchmarks/context_parallel.py FILE [FILE ...]

A line for each target that a file has a row of: the fastest of our forms over our own kernel on one GPU, and over torch's
`context_parallel`, from rounds of the same run; with what was predicted before anything had run on two GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
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
    Target(softmax(32768, True) | {"nheads": 64, "nheads_kv": 8}, 1.75, 1.9, "none"),
    Target(softmax(131072, True), 1.93, 1.93, "1.95-1.98"),
    Target(softmax(131072, False), 1.95, 1.95, "1.96-1.99"),
    Target(softmax(32768, True), 1.15, 1.15, "1.4-1.5", over="cp-torch"),
    Target({"function": "hstu", "batch": 1, "seqlen": 65536, "nheads": 4, "causal": True}, 1.75, 1.9, "1.82-1.88"),
    Target({"function": "hstu", "lengths": "kuairand", "causal": True}, 1.85, 1.85, "1.93-1.98"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """The best of our forms in a case, beside a target."""

    target: Target
    records: Mapping[str, Record]
    "of the case, by backend"
    best: str
    ratio: float

    @property
    def said(self) -> str:
        """Whether the target is reached."""
        if self.ratio < self.target.least:
            return "missed"
        return "reached" if self.ratio < self.target.aim else "reached, and the aim"

    @property
    def hidden(self) -> str:
        """Percent of the exchange that the best form hides; empty where that was not measured, or is noise."""
        percent = self.records[self.best].counters.get("hidden_percent")
        # Records of before the limits of `backends.context_parallel.hidden_of` have the noise.
        return "" if percent is None or not 0 <= percent <= 100 else f"{percent:.0f}"


def results(run: Run) -> Iterator[Result]:
    """What a run has of each target, in the order of the targets."""
    cases: dict[str, dict[str, Record]] = {}
    for record in run.records:
        if record.workload == "attention-cp" and record.time:
            cases.setdefault(record.group, {})[record.backend] = record
    for target in TARGETS:
        for records in cases.values():
            case = next(iter(records.values())).case
            wanted = case["world"] == 2 and all(case[name] == value for name, value in target.case.items())
            if wanted and (ratios := _ratios(records, target.over)):
                best = max(ratios, key=lambda name: ratios[name])
                yield Result(target, records, best, ratios[best])


def _ratios(records: Mapping[str, Record], over: str) -> dict[str, float]:
    """Speed-ups of our forms that were sampled in turn with `over`."""
    if over not in records:
        return {}
    base = by_round(records[over])
    return {name: paired_ratio(base, by_round(records[name])).ratio for name in OURS if name in records}


def lines(run: Run) -> Iterator[str]:
    """What a run says of each target."""
    for one in results(run):
        target, record = one.target, one.records[one.best]
        yield (
            f"{record.group}: {one.best} {one.ratio:.3f}x {target.over}, at least {target.least:g} (aim {target.aim:g}): "
            f"{one.said}; predicted {target.predicted}"
            + (f"; {one.hidden} % of the exchange hidden" if one.hidden else "")
        )


SHOWN = ("cp-one", "cp-ulysses", "cp-allgather", "cp-ring", "cp-torch")
HEAD = ["case", *(f"`{name}`, ms" for name in SHOWN), "fastest of ours", "over", "bar", "aim", "exchange hidden, %"]


def table(runs: Iterable[Run]) -> list[list[str]]:
    """The rows of the docs' table under `HEAD`; of several runs of one case and target the first counts."""
    rows: list[list[str]] = []
    shown: list[Target] = []
    for one in (found for run in runs for found in results(run)):
        if one.target in shown:
            continue
        shown.append(one.target)
        ms = {name: record.time.median_ms for name, record in one.records.items() if record.time is not None}
        target, case = one.target, one.records[one.best].case
        words = [case["function"], f"{case['seqlen']} rows", "causal" if case["causal"] else "full"]
        if case["nheads_kv"] != case["nheads"]:
            words.insert(2, f"{case['nheads']} heads of {case['nheads_kv']} KV heads")
        if case["lengths"] != "full":
            words[1] = f"{case['batch']} sequences, {case['lengths']}, {case['seqlen']} at most"
        rows.append(
            [
                ", ".join(words),
                *(f"{ms[name]:.3f}" if name in ms else "" for name in SHOWN),
                f"`{one.best}` **{one.ratio:.2f}x**",
                f"`{target.over}`",
                f"{target.least:g} " + ("**missed**" if one.ratio < target.least else "reached"),
                f"{target.aim:g} " + ("reached" if one.ratio >= target.aim else "missed"),
                one.hidden,
            ]
        )
    return rows


def by_round(record: Record) -> dict[int, float]:
    """Its samples by their round."""
    assert record.time is not None
    return dict(zip(record.time.rounds, record.time.samples_ms, strict=True))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for line in lines(read(name)):
            print(line)
