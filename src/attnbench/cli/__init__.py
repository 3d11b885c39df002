"""The command line: one file per verb, each with `add_arguments(parser)` and `run(args) -> int`.

Heavy modules are imported only when a verb needs them, so `attnbench --help` is fast.  `main` turns errors into one
line on stderr and an exit code: 0 done, 1 a check or verdict failed, 2 bad usage, 3 nothing could run, 130 interrupted
(143 by SIGTERM, 129 by SIGHUP).
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from attnbench import __version__
from attnbench.cli.ending import exit_code, like_ctrl_c
from attnbench.cli.output import Output, fill_closed_streams
from attnbench.errors import AttnbenchError, UsageError, refusal, unknown

VERBS = {
    "run": "measure a suite (default: quick)",
    "compare": "one shape, every backend, one table",
    "check": "correctness only: forward and gradients",
    "list": "backends, configs, suites, workloads, timers, layouts",
    "doctor": "what this machine can run, what not, why, and how to fix it",
    "tune": "the fastest configuration of a backend, with its uncertainty",
    "diff": "two runs compared: a verdict for every row",
    "load": "serve a model under load: latency over rate",
    "profile": "the kernels of a suite by ncu, nsys or torch.profiler",
    "links": "how fast the GPUs of this machine reach each other",
    "merge": "merge the shards of a run",
    "show": "the tables of an earlier run",
    "explain": "the gain of a whole step by another attention: predicted, measured",
    "report": "runs as one HTML page, and their charts as images",
    "export": "write a run as CSV, XLSX, Markdown, JSON or an older script's layout",
    "import": "turn results of an older script into a run file",
    "data": "recommender data, real or synthetic, in NVIDIA's layout",
    "history": "all stored runs, and the trend of one row with its changes",
}
MODULES = {"list": "listing", "export": "exporting", "import": "importing"}
"""Modules of verbs whose own name is a keyword or means something else in Python."""

BROKEN_PIPE = 141
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk; for files they are UsageErrors already, so these come from stdout."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after the program's name; None takes the process's own.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    open_stdout = fill_closed_streams()
    output = Output()
    try:
        with like_ctrl_c():
            code = _dispatch(words, output, open_stdout)
            output.flush()
    except AttnbenchError as error:
        output.note(" ".join(str(error).split()))
        return error.exit_code
    except KeyboardInterrupt as ending:
        output.note("attnbench: interrupted")
        return exit_code(ending)
    except BrokenPipeError:
        _forget_stdout()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in FULL:
            raise
        _forget_stdout()
        output.note(f"attnbench: stdout cannot be written ({error.strerror}); a place with room")
        return UsageError.exit_code
    return code


def _forget_stdout() -> None:
    """Discard the rest of stdout, so that the flush at exit raises no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str], output: Output, open_stdout: bool) -> int:
    if words[:1] == ["help"]:  # as in git and cargo: `help run`
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "--help-all"):
        output.line(overview())
        return 0
    if words[0] in ("-V", "--version", "version"):
        output.line(f"attnbench {__version__}")
        return 0
    verb, *rest = words
    if verb not in VERBS:
        if verb.startswith("-"):
            accepted = f"--help, --version, or a command first: {', '.join(VERBS)}"
            raise UsageError(refusal("attnbench", "flag", verb, "is not known here", accepted))
        if verb in _suites():
            todo = f"attnbench run {verb}"
            raise UsageError(refusal("attnbench", "command", verb, "is a suite", f"one of {', '.join(VERBS)}", todo))
        raise unknown("attnbench", "command", verb, VERBS)
    from attnbench.cli.parser import Parser

    module = _module_of(verb)
    parser = Parser(verb, VERBS[verb], _verbs_with)
    module.add_arguments(parser)
    text = parser.help_for(rest)
    if text is not None:
        output.line(text.rstrip())
        return 0
    args = parser.read(rest)
    if not open_stdout:
        parser.refuse_stdout(args)
    code: int = module.run(args)
    return code


def _module_of(verb: str) -> Any:
    return importlib.import_module(f"attnbench.cli.{MODULES.get(verb, verb)}")


def _verbs_with(flag: str) -> list[str]:
    """Return the commands that have this flag."""
    from attnbench.cli.parser import Parser

    found = []
    for verb, summary in VERBS.items():
        parser = Parser(verb, summary)
        _module_of(verb).add_arguments(parser)
        found += [verb] if flag in parser.flags() else []
    return found


def _suites() -> list[str]:
    from attnbench.suites.load import case_names, suite_names

    return [*suite_names(), *case_names()]


def overview() -> str:
    """Return the text of `attnbench --help`."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items())
    return f"""usage: attnbench COMMAND ...

The bench for attention kernels: which implementation is fastest for my shapes
on my machine, and is it right?

commands:
{verbs}

examples:
  attnbench run                               measure the suite `quick`
  attnbench compare --seqlen 4096 --causal    one shape, every backend
  attnbench run flash-sweep --csv sweep.csv   a sweep, rows for a spreadsheet

attnbench COMMAND --help shows the usual flags of a command, --help-all all of
them; --version shows the version.
Exit codes: 0 done, 1 a check failed, 2 bad usage, 3 nothing could run,
130 interrupted (143 by SIGTERM, 129 by SIGHUP)."""
