"""Run a profiler: an argument list, a time limit, and a reason if it leaves no capture."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnbench.errors import Unavailable
from attnbench.machine import child
from attnbench.worker.private import without_paths

NOTHING = "No kernels were profiled"
"""ncu prints this after any failure, too."""

COMPLAINTS: tuple[tuple[str, str], ...] = (
    (
        r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters",
        "this user may not read the GPU's counters (ERR_NVGPUCTRPERM); run it as root, or load the driver with "
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    (
        r"driver resource was unavailable|ResourceUnavailable|MULTIPLE_SUBSCRIBERS|another (tool|profiler|instance)",
        "another profiler holds the GPU's counters; end it (DCGM's profiling metrics, a second ncu or nsys)",
    ),
    (
        r"Graph profiling is not supported|launches inside CUDA [Gg]raphs|not permitted when stream is capturing",
        "the launches are inside a CUDA graph, which this version cannot take apart; a newer one, or another backend",
    ),
    (
        r"(?i)driver (version )?is (not compatible|insufficient)|[Cc]uda driver is not compatible|unsupported driver",
        "it does not support this driver; a version from the driver's CUDA toolkit",
    ),
    (
        r"(?i)device is not supported|unsupported (gpu|device)|No metrics to collect found",
        "it does not know this GPU; a newer version",
    ),
    (r"(?i)no space left on device", "the disk is full"),
    (r"(?i)cuda out of memory|CUDA_ERROR_OUT_OF_MEMORY|out of memory", "the GPU has too little free memory for it"),
    (
        r"nsight-compute-lock",
        "another user's lock file of ncu is in the folder of temporary files; set TMPDIR to a folder of your own",
    ),
    (
        NOTHING,
        "no kernel was profiled: no launch in the window has a name that --kernel matches, or is in a range that "
        "--range names",
    ),
    (
        r"(?i)unrecognised option|unrecognized option|unknown (option|argument)",
        "this version does not know an option; a version from 2023 on",
    ),
)
"""Patterns in the output of tools and their meaning; the first match is the reason."""

RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")
"""The line of a traceback with the exception; some tracebacks go on after it."""

LAST_WORDS = 200


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of a tool's run."""

    code: int | None
    "None if the time limit ended it"
    text: str
    "stdout and stderr, interleaved"
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it exited by itself with code 0."""
        return self.code == 0


def run(argv: Sequence[str], *, timeout_s: float, log: Path) -> Finished:
    """Run a tool to its end.

    The tool and its child processes end with this call, however the call ends.

    Args:
        argv: command line, run without a shell.
        timeout_s: time limit.
        log: file to which the output is appended.

    Raises:
        Unavailable: the tool cannot be started.
    """
    began, start = time.perf_counter(), log.stat().st_size if log.exists() else 0
    with log.open("ab") as out:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(),
            )
        except OSError as error:
            raise Unavailable(
                f"{Path(argv[0]).name}: cannot be started ({error.strerror}); see `attnbench doctor`"
            ) from None
        code: int | None = None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also on Ctrl-C: no process is left running
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with log.open("rb") as said:
        said.seek(start)
        return Finished(code, said.read().decode(errors="replace"), time.perf_counter() - began)


def _environment() -> dict[str, str]:
    """Return this process's environment with the C locale for numbers."""
    kept = {key: value for key, value in child.environment().items() if key != "LC_ALL"}
    return {**kept, "LC_NUMERIC": "C"}


def reason(tool: str, finished: Finished, timeout_s: float) -> str:
    """Return why a tool left no capture, in attnbench's words if the failure is a known one."""
    if finished.code is None:
        return f"{tool}: did not end within {timeout_s:g} s and was stopped; --timeout"
    error = _error(finished.text)
    for pattern, meaning in COMPLAINTS:
        if re.search(pattern, finished.text) and not (error and pattern == NOTHING):
            return f"{tool}: {meaning}"
    if error:
        return f"{tool}: {without_paths(error)[:LAST_WORDS]}"
    lines = [line.strip() for line in finished.text.splitlines() if line.strip()]
    said = f"; its last line was: {without_paths(lines[-1])[:LAST_WORDS]}" if lines else ""
    if finished.code < 0:
        return f"{tool}: was killed by {child.signal_name(-finished.code)}{said}"
    return f"{tool}: ended with code {finished.code}{said}"


def _error(text: str) -> str | None:
    """Return ncu's own error; if the program that ncu started failed, that program's last error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    theirs = [line for line in lines if not line.startswith("==")]
    theirs = [line for line in theirs if RAISED.match(line)] or theirs
    ended = next((one for one in errors if "returned an error code" in one), None)
    if ended is not None and len(errors) == 1:
        return f"{ended} {theirs[-1]}" if theirs else ended
    return next((one for one in errors if one != ended), None)


def shown(argv: Sequence[str]) -> str:
    """Return a command line for people and records: programs and files without this machine's folders."""
    return shlex.join(without_paths(word) for word in argv)
