"""`attnbench check`: check outputs and gradients, without timing."""

from __future__ import annotations

import argparse

from attnbench.cli import executors, flags
from attnbench.cli.execution import nothing_ran, plan_and_execute
from attnbench.cli.parser import Parser
from attnbench.cli.request import make_run
from attnbench.errors import UsageError, refusal
from attnbench.record import Run, Status

DEFAULT = "quick"
WRONG = (Status.INCORRECT, Status.FAILED, Status.CRASHED, Status.TIMEOUT)


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    flags.add_suite(parser, DEFAULT)
    flags.add_workload(parser)
    flags.add_shape(
        parser,
        note=(
            "Each a value or a comma list. Defaults apply unless the suite sets a value; --mode is always "
            "fwd,fwd-bwd by default."
        ),
    )
    flags.add_backends(parser, baseline=False)
    flags.add_measuring(parser, flags.CHECK_SETTINGS)
    executors.add_arguments(parser)
    flags.add_output(parser)
    parser.show_first(*flags.USUAL, of=flags.usual_of)
    parser.example(
        "attnbench check",
        "attnbench check --seqlen 1,63,127,1000 --causal-both --backends 'sdpa-*'",
        "attnbench check quick --backends ./mine.py --quiet --no-save",
    )


def run(args: argparse.Namespace) -> int:
    """Check; return 1 if something is wrong, failed, crashed or hung, 3 if nothing could be checked."""
    from attnbench.report.checks import Checks

    done = plan_and_execute(args, "check", lambda: _plan(args), Checks)
    if isinstance(done, int):
        return done
    statuses = {record.status for record in done.records}
    if statuses & set(WRONG):
        return 1
    if Status.PASSED not in statuses:
        raise nothing_ran(done)
    return 0


def _plan(args: argparse.Namespace) -> Run:
    fixed, modes = {"measure": False}, {"mode": ("fwd", "fwd-bwd")}
    if args.suite is not None:
        if args.workload is not None:
            raise UsageError(
                refusal(
                    "attnbench check",
                    "--workload",
                    args.workload,
                    "does not go with a suite",
                    "one of the two",
                    f"leave out {args.suite}",
                )
            )
        return make_run(args, "check", suite=args.suite, fixed=fixed, axes=modes)
    workload = flags.workload_of(args, "attnbench check")
    if workload == flags.FIRST:
        return make_run(args, "check", suite=DEFAULT, fixed=fixed, axes=modes)
    return make_run(args, "check", suite=flags.shape_suite(workload), fixed=fixed, axes=modes, shape_of=workload)
