"""Our FlashAttention beside cuDNN, FlashAttention 2 and 3, interleaved in one group a shape: the rows of suite flash.

Forward, then backward, each row a line: useful TFLOP/s of ours and of each peer, ours over it within rounds with the
interval of the peer that the bar names, and what the bar says.  Beside the default stand some forms of the Hopper path,
a line each where a shape has them; what a shape reaches is the best of them.

    python benchmarks/flash.py --out benchmarks/results/flash-h200.json
    python benchmarks/flash.py --ours flash-triton --out /tmp/default.json
    python benchmarks/flash.py --modes fwd --headdim 128 --seqlen 4096 --out /tmp/flash.json
    python benchmarks/flash.py --ours flash-triton --modes bwd --peers sdpa-cudnn --out /tmp/bwd.json
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
PEERS = {"fwd": (CUDNN, FA2, FA3), "bwd": (CUDNN, FA3_BACKWARD), "fwd-bwd": (CUDNN, FA3_BACKWARD)}
"""What ours is measured beside, by mode; the first is the baseline."""
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
    """The bar of a row: of a forward a share of FlashAttention 3, lower where dims are no power of two.

    Of a backward cuDNN, of 256 dims 0.9 of it, and up to 128 dims 0.95 of FlashAttention 3 built from its source.
    """
    if mode != "fwd" and headdim == 256:
        return Bar({CUDNN: 0.9}, {CUDNN: 1.0})
    if mode != "fwd":
        return Bar({CUDNN: 1.0, FA3_BACKWARD: 0.95}, {CUDNN: 1.1})
    if seqlen < 4096:
        return Bar({FA3: 0.98}, {FA3: 1.0})
    return Bar({FA3: 0.97 if headdim in (64, 128, 256) else 0.95}, {FA3: 1.0})


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
        """The row against its bar; it is reached only where all of its peers were measured."""
        bar = bar_of(self.mode, self.headdim, self.seqlen)
        if self.ours is None:
            return "not measured"
        if any(self._room(bar.least, peer) < 1 for peer in bar.least):
            return "BELOW THE BAR"
        if missing := [peer for peer in bar.least if peer not in self.peers]:
            return f"bar not measured: no {', '.join(missing)}"
        return "aim reached" if all(self._room(bar.aim, peer) >= 1 for peer in bar.aim) else "bar reached"

    def _room(self, part: Mapping[str, float], peer: str) -> float:
        """Ours over what is wanted of a peer; not a number of one that was not measured."""
        return self.peers[peer][1] / part[peer] if peer in self.peers else float("nan")


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
    parser.add_argument(
        "--peers", default="", help="comma list, the first the baseline; those of the mode's bars if empty"
    )
    parser.add_argument("--modes", default="fwd,bwd")
    parser.add_argument("--seqlen", default="", help="comma list out of the suite's")
    parser.add_argument("--headdim", default="", help="comma list out of the suite's")
    parser.add_argument("--max-seconds", type=float, default=None)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write one run file with all modes."""
    args = arguments_of(arguments)
    ours = args.ours.split(",")
    whole, rows = None, []
    axes: dict[str, Any] = {
        name: [int(value) for value in given.split(",")]
        for name, given in (("seqlen", args.seqlen), ("headdim", args.headdim))
        if given
    }
    for mode in args.modes.split(","):
        mine, peers = of_mode(ours, mode), args.peers.split(",") if args.peers else PEERS[mode]
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
