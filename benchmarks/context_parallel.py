"""What context-parallel attention has to reach on two H200 of one host: measured, and held against its run files.

    python benchmarks/context_parallel.py FILE [FILE ...]
    python benchmarks/context_parallel.py --measure OUT [--parts 8k,128k-full] [--times 1] [--backends cp-one,cp-ring]

A line for each target that the files have a row of: the fastest of our forms over our own kernel on one GPU, and over
torch's `context_parallel`, from rounds of the same run; with what was predicted before anything had run on two GPUs. All
runs of a case count, each process once, whichever of them is the better one; those of earlier code are named in `EARLIER`.
A target is reached or missed if the whole interval is on that side of it, else that is not decided: measure it again.
Processes of the fastest form alone are cheap: of forms that differ in that, the one with the most processes is shown.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from attnbench.errors import RunFileError
from attnbench.record import Record, Run
from attnbench.stats.ratio import RatioEstimate, paired_ratio
from attnbench.stats.replicates import combine_replicates
from attnbench.store.runfile import read

OURS = ("cp-allgather", "cp-ring", "cp-ulysses")
MISSED, NOT_DECIDED = "**missed**", "not decided"
LEAST_PROCESSES = 3
"""Of a case; processes differ by more than the samples of one do."""
EARLIER = {
    ("fa8944ea", "w2-hstu-b1-s65536-h4-d128-bf16-causal-fwd"): "all-gather had a launch for each chunk of a rank"
}
"""Rows of a run and case that do not count, as the code that they measured has changed since."""


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
    processes: Sequence[Mapping[str, Record]]
    "of the case: the records of each process, by backend"
    best: str
    ratio: RatioEstimate

    def said(self, bar: float) -> str:
        """What the interval says of a bar."""
        low, high = self.ratio.ci_low, self.ratio.ci_high
        if low is None or high is None or low < bar <= high:
            return NOT_DECIDED
        return "reached" if low >= bar else MISSED

    @property
    def interval(self) -> str:
        """The limits, empty where there are none."""
        low, high = self.ratio.ci_low, self.ratio.ci_high
        return "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"

    @property
    def record(self) -> Record:
        """One of the best form."""
        return next(one[self.best] for one in self.processes if self.best in one)

    @property
    def hidden(self) -> str:
        """Percent of the exchange that the best form hides; empty where that was not measured, or is noise."""
        found = [one[self.best].counters.get("hidden_percent") for one in self.processes if self.best in one]
        # Records of before the limits of `backends.context_parallel.hidden_of` have the noise.
        known = [percent for percent in found if percent is not None and 0 <= percent <= 100]
        return f"{median(known):.0f}" if len(known) == len(found) else ""


def results(runs: Iterable[Run]) -> Iterator[Result]:
    """What the runs together have of each target, in the order of the targets."""
    cases: dict[str, dict[tuple[str, int], dict[str, Record]]] = {}
    for run in runs:
        for record in run.records:
            if record.workload == "attention-cp" and record.time and (run.id, record.case_id) not in EARLIER:
                process = run.id, record.replicate
                cases.setdefault(record.case_id, {}).setdefault(process, {})[record.backend] = record
    for target in TARGETS:
        for processes in cases.values():
            records = list(processes.values())
            case = next(iter(records[0].values())).case
            wanted = case["world"] == 2 and all(case[name] == value for name, value in target.case.items())
            each = {name: ratios for name in OURS if (ratios := _ratios(records, name, target.over))}
            if wanted and each:
                most = max(map(len, each.values()))
                found = {name: _together(ratios) for name, ratios in each.items() if len(ratios) == most}
                best = max(found, key=lambda name: found[name].ratio)
                yield Result(target, records, best, found[best])


def _ratios(processes: Sequence[Mapping[str, Record]], name: str, over: str) -> list[RatioEstimate]:
    """How many times as fast a form is, in each process that sampled both in turn."""
    return [
        paired_ratio(by_round(records[over]), by_round(records[name]))
        for records in processes
        if over in records and name in records
    ]


def _together(each: Sequence[RatioEstimate]) -> RatioEstimate:
    """Their geometric mean.

    Its interval is Student's over three processes or more; of fewer it goes from their own least limit to their greatest.
    """
    found = combine_replicates(each)
    if len(each) >= LEAST_PROCESSES:
        return found
    low, high = [one.ci_low for one in each], [one.ci_high for one in each]
    if None in low or None in high:
        return dataclasses.replace(found, ci_low=None, ci_high=None)
    return dataclasses.replace(found, ci_low=min(filter(None, low)), ci_high=max(filter(None, high)))


def lines(runs: Iterable[Run]) -> Iterator[str]:
    """What the runs say of each target."""
    for one in results(runs):
        target = one.target
        yield (
            f"{one.record.case_id}: {one.best} {one.ratio.ratio:.3f}x {target.over}{one.interval}, "
            f"at least {target.least:g}: {one.said(target.least)}, aim {target.aim:g}: {one.said(target.aim)}; "
            f"predicted {target.predicted}" + (f"; {one.hidden} % of the exchange hidden" if one.hidden else "")
        )


SHOWN = ("cp-one", "cp-ulysses", "cp-allgather", "cp-ring", "cp-torch")
HEAD = [
    "case",
    *(f"`{name}`, ms" for name in SHOWN),
    "fastest of ours",
    "over",
    "processes",
    "bar",
    "aim",
    "exchange hidden, %",
]


def table(runs: Iterable[Run]) -> list[list[str]]:
    """The rows of the docs' table under `HEAD`; a time is the median of the medians of all processes."""
    rows: list[list[str]] = []
    for one in results(runs):
        target, case = one.target, one.record.case
        ms = {
            name: [of[name].time.median_ms for of in one.processes if name in of and of[name].time]  # type: ignore[union-attr]
            for name in SHOWN
        }
        words = [case["function"], f"{case['seqlen']} rows", "causal" if case["causal"] else "full"]
        if case["nheads_kv"] != case["nheads"]:
            words.insert(2, f"{case['nheads']} heads of {case['nheads_kv']} KV heads")
        if case["lengths"] != "full":
            words[1] = f"{case['batch']} sequences, {case['lengths']}, {case['seqlen']} at most"
        rows.append(
            [
                ", ".join(words),
                *(f"{median(ms[name]):.3f}" if ms[name] else "" for name in SHOWN),
                f"`{one.best}` **{one.ratio.ratio:.2f}x**{one.interval}",
                f"`{target.over}`",
                str(sum(one.best in of and target.over in of for of in one.processes)),
                f"{target.least:g} {one.said(target.least)}",
                f"{target.aim:g} {one.said(target.aim)}",
                one.hidden,
            ]
        )
    return rows


def by_round(record: Record) -> dict[int, float]:
    """Its samples by their round."""
    assert record.time is not None
    return dict(zip(record.time.rounds, record.time.samples_ms, strict=True))


# ── measuring ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Part:
    """Cases that one command measures."""

    flags: str
    seconds: float
    "of sampling all forms in a case: enough rounds that the interval is narrower than what lies between prediction and bar"
    minutes: float
    "that a run takes, by earlier ones: start of the ranks, oracle, checks and sampling"
    torch: bool = True
    "has cp-torch"


PARTS = {
    "8k": Part("--seqlen 8192", 6, 0.9),
    "32k": Part("--seqlen 32768 --nheads 16 --lengths full", 12, 1.5),
    "gqa": Part("--seqlen 32768 --nheads 64", 12, 1.2, torch=False),
    "128k-causal": Part("--seqlen 131072 --causal", 40, 2.3),
    "128k-full": Part("--seqlen 131072 --no-causal", 80, 3.0),
    "hstu": Part("--function hstu", 8, 1.4, torch=False),
}


def command(part: str, path: Path, backends: Sequence[str]) -> list[str]:
    """The run of a part: these forms, in as many rounds as if they were all."""
    one = PARTS[part]
    every = SHOWN if one.torch else SHOWN[:-1]
    asked = [name for name in every if name in backends]
    seconds = one.seconds * len(asked) / len(every)
    words = f"--gpus 0,1 {one.flags} --backends {','.join(asked)} --max-seconds {seconds:.2g} --timeout 300"
    return ["attnbench", "run", "attention-cp", *words.split(), "--no-save", "--json", str(path)]


def measure(folder: Path, parts: Sequence[str], times: int, backends: Sequence[str], *, dry: bool) -> None:
    """Measure parts so many times each, beside the runs that are there, and hold all of them against the targets."""
    for part in parts:
        there = len(list(folder.glob(f"cp-{part}-[0-9]*.json")))
        for number in range(there + 1, there + 1 + times):
            words = command(part, folder / f"cp-{part}-{number}.json", backends)
            print(f"about {PARTS[part].minutes:g} minutes: {shlex.join(words)}", flush=True)
            if not dry:
                subprocess.run([sys.executable, "-m", *words], check=True)
    if dry:
        print(f"together: about {sum(PARTS[part].minutes for part in parts) * times:.1f} minutes")
        return
    say(sorted(folder.glob("cp-*.json")))


def say(paths: Sequence[Path]) -> None:
    """Print what files say of the targets."""
    print(*lines(read(path) for path in paths), sep="\n")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE", help="run files")
    parser.add_argument("--measure", type=Path, metavar="OUT", help="folder of new run files")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of these (default: %(default)s)")
    parser.add_argument("--times", type=int, default=LEAST_PROCESSES, help="runs of each part (default: %(default)s)")
    parser.add_argument(
        "--backends", default=",".join(SHOWN), help="some of these, cp-one among them (default: %(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands and how long they take")
    args = parser.parse_args(words)
    parts, backends = args.parts.split(","), args.backends.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"--parts: {unknown[0]} is none of {', '.join(PARTS)}")
    if not {"cp-one"} < set(backends) <= set(SHOWN):
        parser.error(f"--backends: cp-one and some of {', '.join(SHOWN[1:])}")
    if args.times < 1:
        parser.error(f"--times: {args.times} measures nothing; 1 or more")
    if args.measure is None:
        if args.dry_run or not args.paths:
            parser.error("FILE or --measure OUT is missing; --dry-run is of --measure")
        try:
            say(args.paths)
        except RunFileError as error:
            parser.error(str(error))
    else:
        args.measure.mkdir(parents=True, exist_ok=True)
        measure(args.measure, parts, args.times, backends, dry=args.dry_run)


if __name__ == "__main__":
    main()
