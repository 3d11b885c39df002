"""Block-sparse HSTU attention of our own beside dense ones, ours and NVIDIA's, interleaved in one group a shape.

The suite hstu-bsa-long (2048 to 16384 rows, 524,288 tokens in all, bf16; 4 heads of 128, 8 of 64, 8 of 32 → 64 dims),
forward, then forward and backward.  Each shape is a line: times, the ratio to each dense backend (median within
rounds, with its interval), the phases of the forward, and peak memory.  At the end, what of the bars is met.

    python benchmarks/hstu_bsa.py --modes fwd-bwd --seqlen 8192 --out benchmarks/results/hstu-bsa-fwd-bwd-h200.json
    python benchmarks/hstu_bsa.py --device cpu --ours hstu-bsa-eager --dense hstu-eager --out /dev/null
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import attnbench
from attnbench.record import Record, Run, Status
from attnbench.stats.ratio import paired_ratio
from attnbench.store.runfile import write

BARS = {("fwd", 4096): (1.0, 1.0), ("fwd", 8192): (2.8, 3.0), ("fwd", 16384): (4.6, 5.0), ("fwd-bwd", 8192): (2.0, 4.0)}
"What has to be reached of NVIDIA's dense time, and what is aimed at, by mode and length."
PEER = "hstu-fbgemm"
BARRED = ((4, 128, 128), (8, 64, 64))
"Heads and dims the bars are stated for."


def ratio(dense: Record, ours: Record) -> tuple[float, float | None, float | None]:
    """Dense time over ours within rounds, and its interval."""
    rounds = [dict(zip(one.time.rounds, one.time.samples_ms, strict=True)) for one in (dense, ours) if one.time]
    found = paired_ratio(*rounds)
    return found.ratio, found.ci_low, found.ci_high


def lines_of(records: Mapping[str, Record], ours: str) -> tuple[list[str], float | None]:
    """What a group says, and the ratio to NVIDIA's dense backend."""
    first = next(iter(records.values()))
    lines = [f"\n{first.case_id}"]
    for name, record in records.items():
        memory = record.memory.peak_allocated_mb if record.memory else None
        peak = "" if memory is None else f"  {memory:,.0f} MiB"
        said = f"{record.time.median_ms:9.3f} ms{peak}" if record.time else f"{record.status.value}: {record.reason}"
        lines.append(f"  {name:18} {said}")
    own = records.get(ours)
    if own is None or own.time is None:
        return lines, None
    dense = {name: one for name, one in records.items() if name != ours and one.time is not None}
    for name, one in dense.items():
        center, low, high = ratio(one, own)
        within = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
        lines.append(f"  {center:.2f}x{within} of {name}: {'faster' if center > 1 else 'slower'}")
    if own.phases:
        lines.append("  phases: " + ", ".join(f"{name} {time.median_ms:.3f}" for name, time in own.phases.items()))
    return lines, ratio(dense[PEER], own)[0] if PEER in dense else None


def verdict(case: Mapping, mode: str, reached: float | None) -> str | None:
    """A line for a shape that has a bar."""
    bar = BARS.get((mode, case["seqlen"]))
    if bar is None or (case["nheads"], case["attn_dim"], case["linear_dim"]) not in BARRED:
        return None
    shape = f"{mode} N={case['seqlen']} H={case['nheads']} D={case['attn_dim']}"
    if reached is None:
        return f"{shape}: not measured; bar {bar[0]:g}x"
    word = "aim reached" if reached >= bar[1] else "bar reached" if reached >= bar[0] else "BELOW THE BAR"
    return f"{shape}: {reached:.2f}x; bar {bar[0]:g}x, aim {bar[1]:g}x: {word}"


def report(run: Run, ours: str, mode: str) -> list[str]:
    """Print every group of a run and give the verdicts."""
    groups: dict[str, dict[str, Record]] = {}
    for record in run.records:
        groups.setdefault(record.group, {})[record.backend] = record
    verdicts = []
    for records in groups.values():
        lines, reached = lines_of(records, ours)
        print("\n".join(lines), flush=True)
        case = next(iter(records.values())).case
        verdicts.append(verdict(case, mode, reached))
    return [line for line in verdicts if line]


def lengths(text: str) -> list[int]:
    """Numbers of a comma list."""
    return [int(number) for number in text.split(",")] if text else []


def main() -> int:
    """Measure, print, and write one run file with both modes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--suite", default="hstu-bsa-long")
    parser.add_argument("--ours", default="hstu-bsa-triton")
    parser.add_argument("--dense", default="hstu-triton,hstu-fbgemm", help="comma list; the first is the baseline")
    parser.add_argument("--modes", default="fwd,fwd-bwd")
    parser.add_argument("--seqlen", type=lengths, default="2048,4096,8192,16384", help="comma list; empty: all at once")
    parser.add_argument("--max-seconds", type=float, default=None)
    args = parser.parse_args()
    dense = args.dense.split(",")
    whole, verdicts = None, []
    # A shape takes half a minute on a card, most of it the check: each length is said and kept when it is there.
    for mode, seqlen in product(args.modes.split(","), args.seqlen or [None]):
        axes = {"mode": mode} | ({"seqlen": [seqlen]} if seqlen else {})
        result = attnbench.run(
            args.suite,
            device=args.device,
            backends=[*dense, args.ours],
            baseline=dense[0],
            axes=axes,
            max_seconds=args.max_seconds,
        )
        verdicts += report(result.run, args.ours, mode)
        whole = (
            result.run
            if whole is None
            else replace(whole, records=(*whole.records, *result.run.records), plan=(*whole.plan, *result.run.plan))
        )
        if args.out != Path("/dev/null"):
            write(whole, args.out)
    if whole is None:
        return 2
    print("\n" + "\n".join(verdicts))
    return 0 if all(one.status is Status.PASSED for one in whole.records if one.backend == args.ours) else 1


if __name__ == "__main__":
    sys.exit(main())
