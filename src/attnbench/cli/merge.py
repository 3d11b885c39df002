"""`attnbench merge`: merge the shards of a run."""

from __future__ import annotations

import argparse
import shlex

from attnbench.cli import flags
from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.store.saved import read_run

WHO = "attnbench merge"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="all shards of one `attnbench run --shard I/N`: files, or ids in --out"
    )
    group = parser.add_argument_group("output", "A path, or - for stdout.")
    flags.add_exports(group)
    group.add_argument(
        "--save", action=argparse.BooleanOptionalAction, default=True, help="keep the run file (default: kept)"
    )
    group.add_argument("-o", "--out", metavar="DIR", default="results", help="folder of run files (default: results)")
    parser.example("attnbench merge shards/*.json", "attnbench merge 1a2b3c4d 5e6f7a8b --html sweep.html")


def run(args: argparse.Namespace) -> int:
    """Read the shards, write the run."""
    from attnbench.cli.formats import write_format
    from attnbench.store.files import check_writable
    from attnbench.store.history.writing import keep
    from attnbench.store.merging import merge
    from attnbench.store.runfile import default_path, new_id, write
    from attnbench.sweep.run import without_interrupted

    asked = flags.exports(args, WHO)
    flags.check_exports(asked)
    output = Output(results_to_stderr="-" in asked.values())
    found = merge([(name, read_run(name, args.out, WHO)[1]) for name in args.runs], run_id=new_id())
    written, missed = [], None
    if args.save:
        path = default_path(found, args.out)
        check_writable(path)
        written.append(str(write(found, path)))
        missed = keep(path)
    for name, target in asked.items():
        write_format(found, name, target)
        written += [target] if target != "-" else []
    # Rows that a stopped shard has cut short are in the file, and are measured again as those that it did not get to.
    rows, size = len(without_interrupted(found).records), sum(len(group.backends) for group in found.plan)
    output.line(
        f"{found.suite}: {len(args.runs)} shard{'s' * (len(args.runs) > 1)}, {rows} of {size} rows"
        + f", written: {', '.join(written)}" * bool(written)
    )
    if rows < size and args.save:
        line = shlex.join(["attnbench", "run", "--resume", written[0]])
        output.note(f"{WHO}: {size - rows} rows are not measured; to finish: {line}")
    if missed is not None:
        output.note(missed)
    return 0
