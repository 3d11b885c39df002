"""`attnbench links`: measure how fast the GPUs of this machine communicate."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnbench.cli.executors import add_no_wait
from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import UsageError, refusal

if TYPE_CHECKING:
    from attnbench.machine.device import Device
    from attnbench.machine.links import Link

WHO = "attnbench links"
SIZES = "1,16,256"
LARGEST_MB, MOST_RANKS = 4096.0, 64


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("--gpus", metavar="all|LIST", help="between these, such as 0,2 (default: all)")
    parser.add_argument(
        "--ranks", metavar="N", help="use this many CPU processes with gloo instead of GPUs, for a trial"
    )
    parser.add_argument("--sizes", metavar="LIST", default=SIZES, help=f"MiB to each peer (default: {SIZES})")
    add_no_wait(parser)
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON; - is stdout")
    parser.example("attnbench links", "attnbench links --gpus 0,1 --sizes 1,4,16,64,256 --json links.json")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    import dataclasses

    from attnbench.machine.gpu_lock import holding
    from attnbench.machine.links import measure_links
    from attnbench.store.files import check_writable, write_text

    sizes, devices = _sizes(args.sizes), _devices(args)
    if args.json not in (None, "-"):
        check_writable(args.json)
    output = Output(results_to_stderr=args.json == "-")
    with holding(devices, output.note, wait=not args.no_wait):
        found = measure_links(WHO, devices, sizes, lambda text: output.note(f"{WHO}: {text}"))
    _print(found, devices, output)
    if args.json is not None:
        text = json.dumps(
            {"devices": list(map(str, devices)), "links": [dataclasses.asdict(one) for one in found]}, indent=1
        )
        if args.json == "-":
            Output().line(text)
        else:
            write_text(args.json, f"{text}\n")
    return 0


def _devices(args: argparse.Namespace) -> Sequence[Device]:
    from attnbench.machine.device import CPU
    from attnbench.machine.gpus import chosen_gpus

    if args.ranks is None:
        devices = chosen_gpus(WHO, args.gpus or "all", without="--ranks 2, processes on the CPU")
        if len(devices) < 2:
            raise UsageError(refusal(WHO, "--gpus", args.gpus or "all", "is one GPU, which has no link", "two or more"))
        return devices
    if args.gpus is not None:
        raise UsageError(refusal(WHO, "--ranks", args.ranks, "is for a CPU, --gpus for GPUs", "one of the two"))
    if not re.fullmatch("[0-9]{1,4}", args.ranks) or not 2 <= int(args.ranks) <= MOST_RANKS:
        raise UsageError(refusal(WHO, "--ranks", args.ranks, "cannot be used", f"2 to {MOST_RANKS}"))
    return [CPU] * int(args.ranks)


def _sizes(text: str) -> list[float]:
    try:
        sizes = [float(word) for word in text.split(",")]
    except ValueError:
        sizes = [0.0]
    if not all(0.0 < size <= LARGEST_MB for size in sizes):
        raise UsageError(
            refusal(WHO, "--sizes", text, "cannot be used", f"MiB above 0, at most {LARGEST_MB:g}, with commas")
        )
    return sizes


def _print(found: Sequence[Link], devices: Sequence[Device], output: Output) -> None:
    from attnbench.report.terminal import Terminal

    terminal = Terminal(output.console())
    terminal.title(f"links of {', '.join(map(str, devices))}", "GB/s that leave a device in one direction")
    table = terminal.table()
    for title in ("operation", "MiB", "median µs", "GB/s"):
        table.add_column(terminal.text(title), justify="left" if title == "operation" else "right")
    for one in found:
        words = (one.operation, f"{one.size_mb:g}", f"{1e3 * one.median_ms:.1f}", f"{one.gbps:.3g}")
        table.add_row(*map(terminal.text, words))
    terminal.print(table)
