"""`attnbench run`: measure a suite."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from attnbench.cli import executors, flags
from attnbench.cli.execution import plan_and_execute, verdict
from attnbench.cli.parser import Parser
from attnbench.cli.request import make_run
from attnbench.errors import UsageError, refusal

if TYPE_CHECKING:
    from attnbench.record import Run
DEFAULT, WHO = "quick", "attnbench run"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    from attnbench.presentation.block import LEGEND

    flags.add_suite(parser, DEFAULT)
    flags.add_shape(
        parser,
        note=(
            "Each a value or a comma list. In a suite of axes a flag replaces that axis; in a suite of listed cases it "
            "selects among them. Defaults apply unless the suite sets a value; the suites minimal and compare also "
            "read the environment variables BATCH, SEQLEN, NHEADS, HEADDIM."
        ),
    )
    flags.add_backends(parser)
    flags.add_measuring(parser)
    executors.add_arguments(parser)
    flags.add_output(parser)
    group = parser.add_argument_group("capture", "For the suite video: files of a generation.")
    group.add_argument(
        "--capture",
        metavar="DIR",
        help=(
            "store q, k and v of the baseline's generation there, a safetensors file per layer and step (default: none)"
        ),
    )
    group.add_argument("--capture-layers", metavar="LIST", help="layers of the model, from 0 (default: 0)")
    group.add_argument("--capture-steps", metavar="LIST", help="steps of the generation, from 1 (default: 1)")
    group.add_argument(
        "--mp4", metavar="DIR", help="write each row's last video there, as MODEL_ROW.mp4 (default: none)"
    )
    flags.add_view(parser)
    parser.show_first(*flags.USUAL, of=flags.usual_of)
    parser.example(
        "attnbench run",
        "attnbench run gpt2-small --mode fwd-bwd",
        "attnbench run flash-sweep --headdim 64,128 --csv sweep.csv",
        "attnbench run quick --backends ./mine.py --json -",
        remark=LEGEND,
    )


def run(args: argparse.Namespace) -> int:
    """Measure, show, save; return 1 if an output was wrong, 3 if nothing passed."""
    from attnbench.report.table import Tables

    view = flags.view_of(args, WHO)
    for flag, value in (("--capture-layers", args.capture_layers), ("--capture-steps", args.capture_steps)):
        if value is not None and args.capture is None:
            raise UsageError(refusal(WHO, flag, value, "says what to capture, and nothing is", "beside --capture DIR"))
    for flag, value in (("--capture", args.capture), ("--mp4", args.mp4)):
        if value is not None and args.resume is not None:
            raise UsageError(refusal(WHO, flag, value, "does not go with --resume", "a new run"))
    done = plan_and_execute(args, "run", lambda: _planned(args), lambda console: Tables(console, view))
    return done if isinstance(done, int) else verdict(done)


def _planned(args: argparse.Namespace) -> Run:
    planned = make_run(args, "run", suite=DEFAULT if args.suite is None else args.suite)
    if args.capture is not None:
        from attnbench.workloads.video.capture import ask

        ask(WHO, args.capture, args.capture_layers or "0", args.capture_steps or "1", planned.plan)
    if args.mp4 is not None:
        from attnbench.workloads.video import mp4

        mp4.ask(WHO, args.mp4, planned.plan)
    return planned
