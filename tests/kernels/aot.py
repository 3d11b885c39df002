"""Kernels compiled ahead of time, without a GPU, and the result: registers, spills, shared memory, SASS.

Jobs are compiled by processes, one with the pinned Triton and one with the oldest supported (`OLDEST`, installed next to
the environment by `make test`).  The two run at the same time, use no shared compile cache, and serve all tests of the
process that started them.

    jobs = [Job("fwd-128", "attnbench.kernels.some:kernel", {"x_ptr": "*bf16:16", "rows": "i32"},
                {"BLOCK": 128}, capability=90, num_warps=8)]
    for triton, found in compile_with(tritons(), jobs).items():
        assert found["fwd-128"].tensor_core and not found["fwd-128"].spills

`jobs.recorded` makes the jobs of everything that a launcher launches.  `compiler` is the program of these processes.

With ``ATTNBENCH_KERNEL_CODE`` naming a file, each compiled kernel adds a line to it: what was compiled, and a hash of its
SASS.  `benchmarks/kernel_code.py` compares two such files, to show that a refactoring does not change the machine code.
Set ``TRITON_DISABLE_LINE_INFO=1`` for both: line numbers alone change what ptxas of Triton 3.6 makes of the same PTX.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import figures
from .compiler import Compiled
from .jobs import Job, recorded

__all__ = ["EVERY", "NO_OLDEST", "OLDEST", "ROOT", "Compiled", "Job", "compile_with", "listed", "recorded", "tritons"]

ROOT = Path(__file__).resolve().parents[2]
OLDEST = ROOT / ".venv" / "triton-3.6"
NO_OLDEST = "Triton 3.6 is not there; `make test` installs it"
EVERY = bool(os.environ.get("ATTNBENCH_EVERY_KERNEL"))
"""Whether tests compile everything that they list, as in `make kernels`, or only what every change must keep."""


def listed(held: Mapping[str, Sequence[Any]], more: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """What each Triton compiles: `held` always, and `more` where everything is compiled."""
    return {version: [*cells, *(more.get(version, ()) if EVERY else ())] for version, cells in held.items()}


def tritons() -> dict[str, Path | None]:
    """The Tritons that are installed: the pinned one (None: the environment's), and the oldest supported if it is there."""
    return {"pinned": None} | ({"3.6": OLDEST} if (OLDEST / ".ready").is_file() else {})


def compile_with(versions: Mapping[str, Path | None], jobs: Sequence[Job]) -> dict[str, dict[str, Compiled]]:
    """Compile every job with every Triton, the Tritons in parallel.

    Args:
        versions: name to the folder put in front of the Python path, as returned by `tritons`.
        jobs: with distinct labels, of modules on the Python path or in folders of ``PYTHONPATH``.

    Returns:
        By name of the Triton and label of the job.

    Raises:
        RuntimeError: a job did not compile, and the message ends with the compiler's; or the code would give wrong values
            according to registers.py.
    """
    keys = {name: [None if EVERY else figures.key_of(job, folder) for job in jobs] for name, folder in versions.items()}
    before = {
        name: {job.label: held for job, key in zip(jobs, of, strict=True) if (held := figures.found(key))}
        for name, of in keys.items()
    }
    asked = {name: [job for job in jobs if job.label not in held] for name, held in before.items()}
    busy = [name for name, wanted in asked.items() if wanted]
    try:
        for name in busy:
            folder = versions[name]
            if folder not in _compilers:
                _compilers[folder] = _Compiler(folder)
            _compilers[folder].ask(asked[name])
        answers = {name: _compilers[versions[name]].answer() for name in busy}
    except BaseException:
        # An answer that was not read would be taken for the answer to the next question.
        for folder in versions.values():
            if folder in _compilers:
                _compilers.pop(folder).close(kill=True)
        raise
    found = {}
    for name in versions:
        answer = answers.get(name, {"found": {}})
        if "wrong" in answer:
            raise RuntimeError(f"Triton {name}: {answer['wrong'][-4000:]}")
        made = before[name] | answer["found"]
        for job, key in zip(jobs, keys[name], strict=True):
            figures.note(key, made[job.label])
        found[name] = {job.label: Compiled(**made[job.label]) for job in jobs}
        wrong = {
            label: faults
            for label, one in found[name].items()
            if (faults := {**one.unset, **one.overwritten, **one.unread})
        }
        if wrong:
            raise RuntimeError(
                f"Triton {name}: read where not written, unread where given back, or written while read: {wrong}"
            )
    return found


class _Compiler:
    """A process of one Triton that compiles jobs until the tests end; starting one takes seconds."""

    def __init__(self, folder: Path | None) -> None:
        ours = [str(ROOT / "src"), str(ROOT / "tests")]
        paths = [str(folder)] * (folder is not None) + [*ours, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "TRITON_DEFAULT_FP_FUSION": "1"}
        environment.pop("TRITON_INTERPRET", None)
        command = [sys.executable, "-P", "-m", "kernels.compiler"]
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in close)
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )

    def ask(self, jobs: Sequence[Job]) -> None:
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        print(json.dumps({"paths": paths, "jobs": [asdict(job) for job in jobs]}), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """``found``, figures by label, or what went ``wrong``."""
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._said.seek(0)
            raise RuntimeError(f"the compiler ended with {code}: {self._said.read()[-4000:]}")
        return json.loads(line)

    def close(self, *, kill: bool = False) -> None:
        """End it: at the end of its input, or at once."""
        if kill:
            self._process.kill()
        self._process.communicate()
        self._said.close()


_compilers: dict[Path | None, _Compiler] = {}


@atexit.register
def _close() -> None:
    for compiler in _compilers.values():
        compiler.close()
