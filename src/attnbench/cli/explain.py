"""`attnbench explain`: attention's share of a whole step, and the predicted and measured gain of another attention."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import UsageError, refusal, unknown
from attnbench.store.saved import read_run

WHO = "attnbench explain"
LATEST = "latest"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "source",
        nargs="?",
        default=LATEST,
        metavar="RUN",
        help=(
            "a run of whole steps: a run file, the id of one in --out or in the history, latest or previous (default: "
            "latest)"
        ),
    )
    parser.add_argument("--baseline", metavar="NAME", help="the row to start from (default: the run's own baseline)")
    parser.add_argument("--out", metavar="DIR", default="results", help="folder of run files (default: results)")
    parser.example("attnbench explain", "attnbench explain 1a2b3c4d --baseline serving-paged")


def run(args: argparse.Namespace) -> int:
    """Print predicted and measured steps for each case."""
    from attnbench.presentation.block import backend_name
    from attnbench.presentation.blocks import by_case
    from attnbench.presentation.reconcile import reconciled
    from attnbench.report.table import render_blocks

    found = read_run(args.source, args.out, WHO)[1]
    rows = list(dict.fromkeys(backend_name(record) for record in found.records))
    baseline = found.settings.baseline if args.baseline is None else _row(args.baseline, rows)
    cases = [reconciled(records[0].case_id, records, baseline) for records in by_case(found.records).values()]
    blocks, silent = [block for case in cases for block in case], sum(not case for case in cases)
    if not blocks:
        raise UsageError(
            refusal(
                WHO,
                "RUN",
                args.source,
                "has no case with two rows whose attention is timed and takes less than the step",
                "a run of hstu-serving or video with two backends or more, and enough samples",
            )
        )
    output = Output()
    render_blocks(blocks, output.console())
    if silent:
        why = "without two rows whose attention is timed and takes less than the step"
        output.line(f"left out: {silent} of {len(cases)} cases, {why}")
    return 0


def _row(name: str, rows: Sequence[str]) -> str:
    """Return the row of that name, or the row with that attention: ``fa3-fwd`` is ``video[fa3-fwd]``.

    Raises:
        UsageError: there is no such row.
    """
    meant = [row for row in rows if row.partition("[")[2] == f"{name}]"]
    if name not in rows and len(meant) == 1:
        return meant[0]
    if name not in rows:
        raise unknown(WHO, "--baseline", name, rows)
    return name
