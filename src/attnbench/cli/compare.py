"""`attnbench compare`: one shape, every backend, one table."""

from __future__ import annotations

import argparse

from attnbench.cli import executors, flags
from attnbench.cli.execution import plan_and_execute, verdict
from attnbench.cli.parser import Parser
from attnbench.cli.request import make_run
from attnbench.errors import UsageError, refusal
from attnbench.record import Run

SUITE = "compare"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    from attnbench.presentation.block import LEGEND

    flags.add_workload(parser)
    flags.add_shape(
        parser,
        note=(
            "One value each; on a CPU the default of --dtype is fp32. The environment variables BATCH, SEQLEN, NHEADS, "
            "HEADDIM replace the defaults of the flags of the same name."
        ),
    )
    flags.add_backends(parser)
    flags.add_measuring(parser)
    executors.add_arguments(parser, several=False)
    flags.add_output(parser)
    flags.add_view(parser)
    parser.show_first(*flags.USUAL)
    parser.example(
        "attnbench compare --seqlen 4096 --headdim 128 --causal",
        "attnbench compare --backends 'sdpa-*' --mode fwd-bwd --max-seconds 5",
        "BATCH=4 SEQLEN=2048 attnbench compare --md -",
        "attnbench compare --workload hstu --seqlen 4096",
        remark=LEGEND,
    )


def run(args: argparse.Namespace) -> int:
    """Measure one case with every backend."""
    from attnbench.report.table import Tables

    view = flags.view_of(args, "attnbench compare")
    done = plan_and_execute(args, SUITE, lambda: _one_case(args), lambda console: Tables(console, view))
    return done if isinstance(done, int) else verdict(done)


def _one_case(args: argparse.Namespace) -> Run:
    workload = flags.workload_of(args, "attnbench compare")
    suite = flags.shape_suite(workload)
    planned = make_run(args, SUITE, suite=suite, shape_of=workload)
    cases = list(dict.fromkeys(group.case_id for group in planned.plan))
    if len(cases) > 1:
        raise UsageError(
            refusal(
                "attnbench compare",
                "shape",
                ", ".join(cases[:3]),
                f"are {len(cases)} cases",
                "one value for each flag",
                f"`attnbench run {suite}` takes lists",
            )
        )
    return planned
