"""Useful TFLOP/s of dense HSTU attention over sequences of unequal lengths, beside whole ones of the same work.

Lengths drawn evenly from 1 to N have a third of the pairs of whole ones, so three times as many sequences are as much
work.  Forward, then backward, each shape a line: TFLOP/s of both, and what of the whole ones' is reached.  The bar
is 0.9 for ours.

    python benchmarks/hstu_jagged.py --max-seconds 2 --out benchmarks/results/hstu-jagged-h200.json
    python benchmarks/hstu_jagged.py --device cpu --backends hstu-eager --shapes 64:2:32 --sequences 2 --out /dev/null
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import attnbench
from attnbench.record import Record, Run
from attnbench.store.runfile import write

BAR, AIM = 0.9, 0.95
SHAPES = ((512, 4, 128), (2048, 4, 128), (8192, 4, 128), (2048, 8, 64), (8192, 8, 64))
"Longest sequence, heads, dims."


def shape_of(text: str) -> tuple[int, int, int]:
    """Read one shape, ``2048:4:128``.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text} is no shape; N:heads:dims, as 2048:4:128")
    seqlen, heads, dim = map(int, parts)
    return seqlen, heads, dim


def measured(shape: tuple[int, int, int], mode: str, sequences: int, args: argparse.Namespace) -> Run:
    """One run: whole sequences, and three times as many of even lengths."""
    seqlen, heads, dim = shape
    records: list[Record] = []
    for lengths, batch in (("full", sequences), ("uniform", 3 * sequences)):
        axes = {
            "mode": mode,
            "seqlen": [seqlen],
            "nheads": [heads],
            "attn_dim": [dim],
            "linear_dim": [dim],
            "batch": [batch],
            "lengths": lengths,
            "dtype": ["bf16" if args.device != "cpu" else "fp32"],
        }
        result = attnbench.run(
            "compare-hstu",
            device=args.device,
            backends=args.backends.split(","),
            axes=axes,
            max_seconds=args.max_seconds,
        )
        records += result.run.records
    return replace(result.run, records=tuple(records))


def line(run: Run, backend: str) -> str:
    """What a backend reached of its whole sequences."""
    found = {record.case["lengths"]: record for record in run.records if record.backend == backend}
    case = found["full"].case
    name = f"{case['mode']} N={case['seqlen']} H={case['nheads']} D={case['attn_dim']} {backend}"
    rates = {lengths: record.rate.tflops for lengths, record in found.items() if record.rate and record.rate.tflops}
    if len(rates) < len(found):
        return f"{name}: " + "; ".join(
            f"{lengths}: {record.status.value}: {record.reason}"
            for lengths, record in found.items()
            if lengths not in rates
        )
    whole, jagged = rates["full"], rates["uniform"]
    share = jagged / whole
    held = "" if not backend.startswith("hstu-triton") else ": reached" if share >= BAR else ": MISSED"
    return f"{name}: whole {whole:.4g}, uneven {jagged:.4g} TFLOP/s, {share:.3f} of it{held}"


def main() -> int:
    """Measure, print, and write one run file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backends", default="hstu-triton")
    parser.add_argument("--modes", default="fwd,bwd")
    parser.add_argument(
        "--shapes",
        default=SHAPES,
        help="comma list of N:heads:dims",
        type=lambda text: [shape_of(part) for part in text.split(",")],
    )
    parser.add_argument("--sequences", type=int, default=0, help="whole ones; 0: 262,144 rows in all")
    parser.add_argument("--max-seconds", type=float, default=None)
    args = parser.parse_args()
    whole: Run | None = None
    for mode in args.modes.split(","):
        for shape in args.shapes:
            run = measured(shape, mode, args.sequences or 262144 // shape[0], args)
            print("\n".join(line(run, backend) for backend in args.backends.split(",")), flush=True)
            whole = run if whole is None else replace(whole, records=(*whole.records, *run.records))
            if args.out != Path("/dev/null"):
                write(whole, args.out)  # after each: what is measured is kept
    return 2 if whole is None else 0


if __name__ == "__main__":
    sys.exit(main())
