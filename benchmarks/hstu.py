"""Dense HSTU attention of our own beside NVIDIA's, interleaved in one group a shape: the 13 rows of suite hstu-dense.

Forward, then backward, each row a line: useful TFLOP/s of both, their ratio within rounds with its interval, and what
the bar says.  NVIDIA's own figure is held against the one measured earlier on an H200 (one run, ±5 %).

    python benchmarks/hstu.py --modes fwd --out benchmarks/results/hstu-dense-fwd-h200.json
    python benchmarks/hstu.py --tune --attn-dim 128 --seqlen 2048 --modes bwd --out /tmp/tuned.json    every cut of ours
    python benchmarks/hstu.py --device cpu --ours hstu-eager --peer hstu-bsa-eager --seqlen 128 --out /tmp/cpu.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import attnbench
from attnbench.backends.registry import all_backends
from attnbench.record import Record, Run, Status
from attnbench.stats.ratio import paired_ratio
from attnbench.store.runfile import write
from attnbench.workloads.hstu import WORKLOAD

EARLIER = {
    (4, 128, 256): (151, 120),
    (4, 128, 512): (278, 205),
    (4, 128, 1024): (382, 288),
    (4, 128, 2048): (447, 329),
    (4, 128, 4096): (459, 386),
    (4, 128, 8192): (515, 406),
    (4, 128, 16384): (560, 415),
    (4, 256, 2048): (526, 302),
    (4, 256, 8192): (619, 327),
    (8, 64, 2048): (356, 290),
    (8, 64, 8192): (459, 339),
    (8, 32, 1024): (155, 145),
    (8, 32, 8192): (284, 202),
}
"NVIDIA's TFLOP/s forward and backward by heads, dim and length, measured on an H200 on 2026-11-20 by do_bench."
BACKWARD = (1.3, 1.5)
"Bar and aim of the backward, whole sequences and uneven ones."
SAME = 0.10
"How far the peer's figure may be from the earlier one before the difference wants an explanation."


@dataclass(frozen=True)
class Row:
    """One shape and mode as it came out."""

    shape: tuple[int, int, int]
    mode: str
    peer: float | None
    "TFLOP/s"
    ours: Mapping[str, tuple[float, float, float | None, float | None]]
    "by selector: TFLOP/s, ratio to the peer and its interval; the fastest first"
    lost: tuple[str, ...]
    "what did not pass, and why"

    @property
    def bar(self) -> tuple[float, float]:
        """What has to be reached of the peer, and what is aimed at."""
        if self.mode == "bwd":
            return BACKWARD
        return (1.0 if self.shape[1] <= 128 else 0.85), 1.1

    @property
    def verdict(self) -> str:
        """The row against its bar, by the fastest of ours."""
        if self.peer is None or not self.ours:
            return "not measured"
        best = max(ratio for _, ratio, _, _ in self.ours.values())
        bar, aim = self.bar
        return "aim reached" if best >= aim else "bar reached" if best >= bar else "BELOW THE BAR"

    @property
    def drift(self) -> float | None:
        """The peer against its earlier figure; None where either is missing."""
        known = EARLIER.get(self.shape)
        return None if known is None or self.peer is None else self.peer / known[self.mode == "bwd"] - 1


def ratio_of(peer: Record, ours: Record) -> tuple[float, float | None, float | None]:
    """The peer's time over ours within rounds, and its interval."""
    rounds = [dict(zip(one.time.rounds, one.time.samples_ms, strict=True)) for one in (peer, ours) if one.time]
    found = paired_ratio(*rounds)
    return found.ratio, found.ci_low, found.ci_high


def row_of(records: Iterable[Record], peer: str) -> Row:
    """A group of one case."""
    records = list(records)
    case = records[0].case
    passed = {one.backend: one for one in records if one.status is Status.PASSED and one.time and one.rate}
    theirs, ours = passed.pop(peer, None), {}
    for name, one in sorted(passed.items(), key=lambda item: item[1].time.median_ms):
        nothing = (float("nan"), None, None)
        ours[name] = (one.rate.tflops or 0.0, *(ratio_of(theirs, one) if theirs else nothing))
    lost = tuple(
        f"{one.backend}: {one.status.value}: {one.reason}" for one in records if one.status is not Status.PASSED
    )
    return Row(
        (case["nheads"], case["attn_dim"], case["seqlen"]),
        case["mode"],
        theirs.rate.tflops if theirs and theirs.rate else None,
        ours,
        lost,
    )


def rows_of(run: Run, peer: str) -> list[Row]:
    """Every group of a run."""
    groups: dict[str, list[Record]] = {}
    for record in run.records:
        groups.setdefault(record.group, []).append(record)
    return [row_of(records, peer) for records in groups.values()]


def lines_of(rows: Sequence[Row], most: int) -> list[str]:
    """A short table: a line a row, and one for each further cut up to `most`."""
    lines = [f"{'H':>3} {'D':>4} {'N':>6} {'mode':8} {'peer':>7} {'earlier':>8} {'ours':>7} {'ratio':>7}  interval"]
    for row in rows:
        heads, dim, seqlen = row.shape
        drift = "" if row.drift is None else f"{row.drift:+8.0%}"
        head = f"{heads:3} {dim:4} {seqlen:6} {row.mode:8} {_number(row.peer):>7} {drift:>8}"
        for index, (name, (tflops, ratio, low, high)) in enumerate(list(row.ours.items())[:most] or [("", (0.0,) * 4)]):
            within = "" if low is None or high is None or not name else f"[{low:.3f}, {high:.3f}]"
            figures = f"{_number(tflops if name else None):>7} {f'{ratio:.3f}' if name else '':>7}  {within:16} {name}"
            lines.append(f"{head if not index else ' ' * len(head)} {figures}" + f"  {row.verdict}" * (not index))
        if row.drift is not None and abs(row.drift) > SAME:
            lines.append(f"    the peer is {row.drift:+.0%} from its earlier figure: say why")
        lines += [f"    {one}" for one in row.lost]
    return lines


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def selectors(ours: str, mode: str, *, dim: int | None) -> list[str]:
    """Ours, and its deterministic backward; in a search, for heads of `dim`, every cut of it for this mode."""
    tune = dim is not None
    case = WORKLOAD.case({"mode": mode} | ({"attn_dim": dim, "linear_dim": dim} if tune else {}))
    shorts = [config.short for config in all_backends()[ours].configs(case)]
    chosen = shorts if tune else [short for short in shorts if short == "deterministic"]
    return [ours, *(f"{ours}[{short}]" for short in chosen)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write one run file with both modes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--suite", default="hstu-dense")
    parser.add_argument("--ours", default="hstu-triton")
    parser.add_argument("--peer", default="hstu-fbgemm")
    parser.add_argument("--modes", default="fwd,bwd")
    parser.add_argument("--seqlen", default="", help="comma list out of the suite's")
    parser.add_argument("--attn-dim", default="", help="comma list out of the suite's")
    parser.add_argument("--tune", action="store_true", help="every cut of ours for one --attn-dim, interleaved")
    parser.add_argument("--max-seconds", type=float, default=None)
    args = parser.parse_args(arguments)
    if args.tune and not args.attn_dim.isdecimal():
        parser.error(f"--tune with --attn-dim={args.attn_dim or 'all'} cannot be used; one number, cuts depend on it")
    dim = int(args.attn_dim) if args.tune else None
    whole, rows = None, []
    for mode in args.modes.split(","):
        axes: dict[str, Any] = {
            name: [int(value) for value in given.split(",")]
            for name, given in (("seqlen", args.seqlen), ("attn_dim", args.attn_dim))
            if given
        }
        result = attnbench.run(
            args.suite,
            device=args.device,
            axes=axes | {"mode": mode},
            baseline=args.peer,
            backends=[args.peer, *selectors(args.ours, mode, dim=dim)],
            max_seconds=args.max_seconds,
        )
        found = rows_of(result.run, args.peer)
        print("\n".join(lines_of(found, 5 if args.tune else 2)), flush=True)
        rows += found
        whole = (
            result.run
            if whole is None
            else replace(whole, records=(*whole.records, *result.run.records), plan=(*whole.plan, *result.run.plan))
        )
        if args.out != Path("/dev/null"):
            write(whole, args.out)  # after each mode: what is measured is kept
    below = [row for row in rows if row.verdict == "BELOW THE BAR"]
    print(
        f"\n{len(rows)} rows, {sum(row.verdict.endswith('reached') for row in rows)} at their bar or over, "
        f"{sum(row.verdict == 'aim reached' for row in rows)} at their aim"
    )
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
