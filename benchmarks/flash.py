"""Our FlashAttention beside cuDNN, FlashAttention 2 and 3, interleaved in one group a shape: the rows of suite flash.

Forward, then backward, each row a line: useful TFLOP/s of ours and of each peer, ours over it within rounds with the
interval of the peer that the bar names, and what the bar says.  Beside the default stand some forms of the Hopper path,
a line each where a shape has them; what a shape reaches is the best of them.

    python benchmarks/flash.py --out benchmarks/results/flash-h200.json
    python benchmarks/flash.py --ours flash-triton --out /tmp/default.json
    python benchmarks/flash.py --modes fwd --headdim 128 --seqlen 4096 --out /tmp/flash.json
    python benchmarks/flash.py --ours flash-triton --modes bwd --peers sdpa-cudnn,flash-attn-3 --out /tmp/bwd.json
    python benchmarks/flash.py --device cpu --ours sdpa-flash --peers eager --modes fwd --out /tmp/cpu.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import attnbench
from attnbench.record import Record, Run, Status
from attnbench.stats.ratio import paired_ratio
from attnbench.store.runfile import write

CUDNN, FA2, FA3, FA3_BACKWARD = "sdpa-cudnn", "sdpa-flash", "fa3-fwd", "flash-attn-3"
FORMS = (
    "m128n128w8s2-tma-pp",
    "m128n128w8s2-tma-pp-persistent",
    "m128n128w8s2-tma-ws",
    "m192n64w12s3-tma-pp-persistent",
    "m128n64w8s2-tma-pp",
    "b64x128w8s2-atomic-tma-ws",
    "b64x128w8s3-atomic-tma-ws",
    "b128x128w8s2-atomic-tma-ws",
)
"""Of the Hopper path, beside the default: the forward's, the last for 256 dims too, and the backward's, the last for 64
dims."""


@dataclass(frozen=True)
class Bar:
    """What a row has to reach, and what is aimed at: ratios of our speed to a peer's, all of them."""

    least: Mapping[str, float]
    aim: Mapping[str, float]


def bar_of(mode: str, headdim: int, seqlen: int) -> Bar:
    """The bar of a row: of a forward cuDNN at length and FlashAttention 2 below, of 256 dims 0.9 of the better.

    Of a backward cuDNN, of 256 dims 0.9 of it, and 0.95 of FlashAttention 3 built from its source.
    """
    if mode != "fwd" and headdim == 256:
        return Bar({CUDNN: 0.9}, {CUDNN: 1.0})
    if mode != "fwd":
        return Bar({CUDNN: 1.0, FA3_BACKWARD: 0.95}, {CUDNN: 1.1})
    if headdim == 256:
        return Bar({CUDNN: 0.9, FA3: 0.9, FA2: 0.9 if seqlen >= 4096 else 1.0}, {FA3: 1.0})
    if seqlen >= 4096:
        return Bar({CUDNN: 1.0}, {FA3: 1.0})
    return Bar({FA2: 1.0}, {CUDNN: 1.0})


@dataclass(frozen=True)
class Row:
    """One shape and mode as it came out."""

    headdim: int
    seqlen: int
    causal: bool
    mode: str
    name: str
    "of ours"
    ours: float | None
    "TFLOP/s"
    peers: Mapping[str, tuple[float, float, float | None, float | None]]
    "by name: TFLOP/s, ratio of ours to it and its interval"
    lost: tuple[str, ...]
    "what did not pass, and why"

    @property
    def verdict(self) -> str:
        """The row against its bar, of the peers that were measured."""
        bar = bar_of(self.mode, self.headdim, self.seqlen)
        if self.ours is None:
            return "not measured"
        reached = [self._reached(part) for part in (bar.least, bar.aim)]
        if reached[0] is False:
            return "BELOW THE BAR"
        return "aim reached" if reached[1] else "bar reached" if reached[0] else "no bar measured"

    def _reached(self, part: Mapping[str, float]) -> bool | None:
        found = [self.peers[peer][1] >= ratio for peer, ratio in part.items() if peer in self.peers]
        return all(found) if found else None


def ratio_of(peer: Record, ours: Record) -> tuple[float, float | None, float | None]:
    """The peer's time over ours within rounds, and its interval."""
    rounds = [dict(zip(one.time.rounds, one.time.samples_ms, strict=True)) for one in (peer, ours) if one.time]
    found = paired_ratio(*rounds)
    return found.ratio, found.ci_low, found.ci_high


def row_of(records: Iterable[Record], ours: str) -> Row:
    """A group of one case."""
    records = list(records)
    case = records[0].case
    passed = {one.backend: one for one in records if one.status is Status.PASSED and one.time and one.rate}
    mine = passed.pop(ours, None)
    peers = {
        name: (one.rate.tflops or 0.0, *ratio_of(one, mine))
        for name, one in passed.items()
        if mine is not None and one.rate
    }
    lost = tuple(
        f"{one.backend}: {one.status.value}: {one.reason}" for one in records if one.status is not Status.PASSED
    )
    return Row(
        case["headdim"],
        case["seqlen"],
        case["causal"],
        case["mode"],
        ours,
        mine.rate.tflops if mine and mine.rate else None,
        peers,
        lost,
    )


def rows_of(run: Run, ours: Sequence[str]) -> list[Row]:
    """Every group of a run, once for each of ours that its case has."""
    groups: dict[str, list[Record]] = {}
    for record in run.records:
        groups.setdefault(record.group, []).append(record)
    return [
        row_of([one for one in records if one.backend == mine or one.backend not in ours], mine)
        for records in groups.values()
        for mine in ours
        if any(one.backend == mine and one.status is not Status.SKIPPED for one in records)
    ]


def best_of(rows: Iterable[Row]) -> list[Row]:
    """Of each shape and mode the fastest of ours."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        shape = (row.headdim, row.seqlen, row.causal, row.mode)
        if shape not in found or (row.ours or 0.0) > (found[shape].ours or 0.0):
            found[shape] = row
    return list(found.values())


def of_mode(ours: Sequence[str], mode: str) -> list[str]:
    """Those of ours that say something of a mode: a forward's form times the same backward again."""
    return [name for name in ours if "[" not in name or (mode == "fwd") == ("[m" in name)]


def lines_of(rows: Sequence[Row], peers: Sequence[str]) -> list[str]:
    """A short table: a line a row; of each peer its TFLOP/s and ours over it."""
    columns = "".join(f"{peer[-14:]:>15} {'ratio':>6}" for peer in peers)
    lines = [f"{'D':>4} {'S':>6} {'mask':6} {'mode':8} {'ours':>6}{columns}"]
    for row in rows:
        line = (
            f"{row.headdim:4} {row.seqlen:6} {'causal' if row.causal else 'full':6} {row.mode:8} {_number(row.ours):>6}"
        )
        for peer in peers:
            tflops, ratio, *_ = row.peers.get(peer, (None, None))
            line += f"{_number(tflops):>15} {'' if ratio is None else f'{ratio:.3f}':>6}"
        lines.append(f"{line}  {row.verdict}  {row.name}")
        bar = bar_of(row.mode, row.headdim, row.seqlen).least
        lines += [
            f"     {peer}: {row.peers[peer][1]:.3f} [{low:.3f}, {high:.3f}], wanted {bar[peer]}"
            for peer in bar
            if peer in row.peers
            for low, high in [row.peers[peer][2:]]
            if row.peers[peer][1] < bar[peer] and low is not None and high is not None
        ]
        lines += [f"     {one}" for one in row.lost]
    return lines


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def arguments_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--suite", default="flash")
    parser.add_argument(
        "--ours",
        default=",".join(["flash-triton", *(f"flash-triton[{form}]" for form in FORMS)]),
        help="comma list of selectors: flash-triton[SHORT] is one configuration",
    )
    parser.add_argument("--peers", default=f"{CUDNN},{FA2},{FA3}", help="comma list; the first is the baseline")
    parser.add_argument("--modes", default="fwd,bwd")
    parser.add_argument("--seqlen", default="", help="comma list out of the suite's")
    parser.add_argument("--headdim", default="", help="comma list out of the suite's")
    parser.add_argument("--max-seconds", type=float, default=None)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write one run file with all modes."""
    args = arguments_of(arguments)
    ours, peers = args.ours.split(","), args.peers.split(",")
    whole, rows = None, []
    axes: dict[str, Any] = {
        name: [int(value) for value in given.split(",")]
        for name, given in (("seqlen", args.seqlen), ("headdim", args.headdim))
        if given
    }
    for mode in args.modes.split(","):
        mine = of_mode(ours, mode)
        result = attnbench.run(
            args.suite,
            device=args.device,
            axes=axes | {"mode": mode},
            baseline=peers[0],
            backends=[*mine, *peers],
            max_seconds=args.max_seconds,
        )
        found = rows_of(result.run, mine)
        print("\n".join(lines_of(found, peers)), flush=True)
        rows += found
        whole = (
            result.run
            if whole is None
            else replace(whole, records=(*whole.records, *result.run.records), plan=(*whole.plan, *result.run.plan))
        )
        if args.out != Path("/dev/null"):
            write(whole, args.out)  # after each mode: what is measured is kept
    best = best_of(rows)
    print(
        f"\n{len(best)} rows, {sum(row.verdict.endswith('reached') for row in best)} at their bar or over, "
        f"{sum(row.verdict == 'aim reached' for row in best)} at their aim"
    )
    return 1 if any(row.verdict == "BELOW THE BAR" for row in best) else 0


if __name__ == "__main__":
    sys.exit(main())
