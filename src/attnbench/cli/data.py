"""`attnbench data`: real or synthetic recommender data in NVIDIA's layout, and suites of its shapes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import UsageError, parsed, refusal, unknown
from attnbench.suites.settings import whole
from attnbench.workloads.hstu_serving.case import MOST_BATCH

if TYPE_CHECKING:
    from attnbench.datasets.history import History

WHO = "attnbench data"
FILES, SHAPES = "kuairand-1k", "serving-shapes"
NAMES = (FILES, SHAPES)
USERS, SEED, INTERVAL_S = 100, 0, 60
OF_SHAPES = {"shapes": 6, "batch": "1,8", "num_candidates": "128,1024", "model": "kuairand"}
"Flags of `serving-shapes` only, with their defaults."
MOST_SHAPES = 1000
LONGEST_S = 10**9
"Of an interval: 31 years; the ends of longer ones could overflow."


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help=(f"{FILES}: the data set in NVIDIA's layout; {SHAPES}: a small set of its steps, as suites"),
    )
    group = parser.add_argument_group("source")
    group.add_argument(
        "--source",
        metavar="DIR",
        help=("folder of KuaiRand-1K's own files, or its archive KuaiRand-1K.tar.gz (default: synthetic users)"),
    )
    group.add_argument("--synthetic", action="store_true", help="draw users with the same distributions (the default)")
    group.add_argument("--users", metavar="N", help=f"users to draw (default: {USERS}; the data set has 1000)")
    group.add_argument("--seed", metavar="N", help=f"random seed (default: {SEED})")
    group = parser.add_argument_group("output")
    group.add_argument(
        "--interval",
        metavar="S",
        help=(f"seconds of a user's interactions per request of a replay (default: {INTERVAL_S})"),
    )
    group.add_argument("--to", metavar="DIR", default="data", help="folder of the files (default: data)")
    group.add_argument(
        "--inference",
        action="store_true",
        help=f"a flag of NVIDIA's preprocessor, for the files of a replay, which {FILES} always writes",
    )
    group = parser.add_argument_group(SHAPES)
    group.add_argument(
        "--shapes", metavar="N", help=(f"number of histories, one per stratum (default: {OF_SHAPES['shapes']})")
    )
    group.add_argument("--batch", metavar="LIST", help=f"users per step (default: {OF_SHAPES['batch']})")
    group.add_argument(
        "--num-candidates", metavar="LIST", help=(f"candidates per user (default: {OF_SHAPES['num_candidates']})")
    )
    group.add_argument("--model", metavar="NAME", help=f"kuairand or bench (default: {OF_SHAPES['model']})")
    parser.example(
        "attnbench data kuairand-1k",
        "attnbench data kuairand-1k --source KuaiRand-1K --to prepared",
        "attnbench data serving-shapes --to shapes",
    )


def run(args: argparse.Namespace) -> int:
    """Read or draw the users, write the files, and print a summary."""
    if args.name not in NAMES:
        raise unknown(WHO, "NAME", args.name, NAMES)
    output = Output()
    interval = _whole("--interval", args.interval, 1, INTERVAL_S, LONGEST_S)
    if args.name == SHAPES:
        _write_shapes(args, output, interval)
    else:
        _write_files(args, output, interval)
    if args.source is None:
        output.note(
            "drawn by seed: lengths, popularity and pages as of KuaiRand-1K; visits, actions and features are "
            "assumptions (docs/serving.md)"
        )
    return 0


def _write_files(args: argparse.Namespace, output: Output, interval: int) -> None:
    """Write the three files of NVIDIA's preprocessing."""
    from pathlib import Path

    from attnbench.datasets.processed import BATCHES, INFERENCE, SEQS, write

    for name in OF_SHAPES:
        if (value := getattr(args, name)) is not None:
            raise UsageError(
                refusal(
                    WHO, "--" + name.replace("_", "-"), value, f"does not go with {args.name}", f"it goes with {SHAPES}"
                )
            )
    folder = Path(args.to)
    for line in write(_histories(args, output), folder, interval_s=interval).lines():
        output.line(line)
    output.line(f"written: {', '.join(str(folder / name) for name in (SEQS, INFERENCE, BATCHES))}")


def _write_shapes(args: argparse.Namespace, output: Output, interval: int) -> None:
    """Write suites of listed cases."""
    from pathlib import Path

    from attnbench.datasets.serving_shapes import draw_shapes, model_of, write_suites

    if args.inference:
        raise UsageError(refusal(WHO, "--inference", "on", f"does not go with {SHAPES}", f"it goes with {FILES}"))
    asked = {name: usual if (value := getattr(args, name)) is None else value for name, usual in OF_SHAPES.items()}
    config = model_of(str(asked["model"]))
    count = _whole("--shapes", str(asked["shapes"]), 1, 0, MOST_SHAPES)
    batches = [_whole("--batch", word, 1, 0, MOST_BATCH) for word in str(asked["batch"]).split(",")]
    candidates = [
        _whole("--num-candidates", word, 1, 0, config.max_candidates)
        for word in str(asked["num_candidates"]).split(",")
    ]
    seed = _whole("--seed", args.seed, 0, SEED)
    shapes, requests = draw_shapes(_histories(args, output), config, count=count, interval_s=interval, seed=seed)
    data = (
        "KuaiRand-1K"
        if args.source is not None
        else (f"{_whole('--users', args.users, 1, USERS)} users shaped as those of KuaiRand-1K, drawn by seed {seed}")
    )
    source = f"{data}: {len(shapes)} of {requests} requests, one each {interval} s, by strata of cached tokens"
    written = write_suites(Path(args.to), shapes, config, batches=batches, candidates=candidates, source=source)
    for shape in shapes:
        output.line(f"cached {shape.cached}, new {shape.new}")
    output.line(f"written: {', '.join(map(str, written))}")


def _histories(args: argparse.Namespace, output: Output) -> Iterable[History]:
    from pathlib import Path

    from attnbench.datasets import drawn, kuairand

    if args.source is not None:
        # With shapes, the seed is also that of choosing them.
        for flag in ("synthetic", "users", *(("seed",) if args.name == FILES else ())):
            if (value := getattr(args, flag)) not in (None, False):
                raise UsageError(refusal(WHO, f"--{flag}", value, "does not go with --source", "one of the two"))
        return kuairand.read(Path(args.source), output.note)
    return drawn.draw(_whole("--users", args.users, 1, USERS), _whole("--seed", args.seed, 0, SEED))


def _whole(flag: str, text: str | None, least: int, default: int, most: int | None = None) -> int:
    if text is None:
        return default
    return parsed(WHO, flag, text, whole(least, most))
