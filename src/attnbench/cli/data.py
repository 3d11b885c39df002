"""`attnbench data`: recommender data in the files of NVIDIA's preprocessing, from the real ones or drawn by seed."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import UsageError, refusal, unknown
from attnbench.suites.settings import whole

if TYPE_CHECKING:
    from attnbench.datasets.history import History

WHO = "attnbench data"
NAMES = ("kuairand-1k",)
USERS, SEED, INTERVAL_S = 100, 0, 60
OF_DRAWN = ("users", "seed")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help=f"data set: {', '.join(NAMES)}")
    group = parser.add_argument_group("source")
    group.add_argument("--source", metavar="DIR", help=(
        "folder of KuaiRand-1K's own files, or its archive KuaiRand-1K.tar.gz (default: users drawn by seed)"))
    group.add_argument("--synthetic", action="store_true", help="draw users of the same shape (the default)")
    group.add_argument("--users", metavar="N", help=f"how many to draw (default: {USERS}; the data set has 1000)")
    group.add_argument("--seed", metavar="N", help=f"of what is drawn (default: {SEED})")
    group = parser.add_argument_group("output")
    group.add_argument("--interval", metavar="S", help=(
        f"seconds of a user's interactions that one request of a replay is for (default: {INTERVAL_S})"))
    group.add_argument("--to", metavar="DIR", default="data", help="folder of the three files (default: data)")
    parser.example("attnbench data kuairand-1k", "attnbench data kuairand-1k --source KuaiRand-1K --to prepared")


def run(args: argparse.Namespace) -> int:
    """Read or draw the users, write the files, say what is in them."""
    from pathlib import Path

    from attnbench.datasets import drawn, kuairand
    from attnbench.datasets.processed import BATCHES, INFERENCE, SEQS, write

    if args.name not in NAMES:
        raise unknown(WHO, "name", args.name, NAMES)
    output, folder = Output(), Path(args.to)
    interval = _whole("--interval", args.interval, 1, INTERVAL_S)
    histories: Iterable[History]
    if args.source is not None:
        for flag in ("synthetic", *OF_DRAWN):
            if (value := getattr(args, flag)) not in (None, False):
                raise UsageError(refusal(WHO, f"--{flag}", value, "does not go with --source", "one of the two"))
        histories = kuairand.read(Path(args.source), output.note)
    else:
        histories = drawn.draw(_whole("--users", args.users, 1, USERS), _whole("--seed", args.seed, 0, SEED))
    for line in write(histories, folder, interval_s=interval).lines():
        output.line(line)
    output.line(f"written: {', '.join(str(folder / name) for name in (SEQS, INFERENCE, BATCHES))}")
    if args.source is None:
        output.note("drawn by seed: lengths, popularity and pages as of KuaiRand-1K; visits, actions and features are "
                    "assumptions (docs/serving.md)")
    return 0


def _whole(flag: str, text: str | None, least: int, default: int) -> int:
    if text is None:
        return default
    try:
        return whole(least)(text)
    except ValueError as error:
        raise UsageError(refusal(WHO, flag, text, "cannot be used", str(error))) from None
