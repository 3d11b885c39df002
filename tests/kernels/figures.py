"""Results of earlier compilations, by a hash of everything that goes in.

Compiling all kernels takes minutes of every run of the tests, and most changes touch none of them.  `figures.json.gz`
holds the figures of each job (`Compiled`) under a hash of the kernel's source as Triton hashes it (with the functions
it calls and the globals it reads), the job's arguments, constants and options, the version of Triton, and the files that
read the machine code.  A job whose hash is not in the file is compiled.  Of the others, one in `AGAIN` is drawn at random
in every run and compiled too: different figures are an error, so the file cannot disagree with the compiler.

``make figures`` brings the file up to date, compiling what is not in it; ``make kernels`` compiles everything and ignores
it.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .jobs import Job

HERE = Path(__file__).parent
FILE = HERE / "figures.json.gz"
PACKAGE = "attnbench.kernels."
AGAIN = 25
"One in this many known jobs is compiled nevertheless."
SEEN = "ATTNBENCH_KERNEL_FIGURES"
"Names a folder into which every process writes the figures it used, for `make figures`."

_draw = random.SystemRandom()


@cache
def known() -> Mapping[str, Any]:
    """Figures by key."""
    return json.loads(gzip.decompress(FILE.read_bytes())) if FILE.is_file() else {}


@cache
def _readers() -> str:
    """A hash of the files that compute figures from machine code."""
    names = ("compiler.py", "machine_code.py", "registers.py")
    return hashlib.sha256(b"".join((HERE / name).read_bytes() for name in names)).hexdigest()


@cache
def _version(folder: Path | None) -> str:
    """Version of the Triton in a folder; None: of the installed one."""
    found = metadata.version("triton") if folder is None else None
    return found or next(one.version for one in metadata.distributions(path=[str(folder)]) if one.name == "triton")


@cache
def _source(kernel: str) -> str | None:
    """Triton's hash of one of our kernels; None for any other, and in a process where it is interpreted."""
    module, name = kernel.split(":")
    if not module.startswith(PACKAGE):
        return None
    return getattr(getattr(importlib.import_module(module), name), "cache_key", None)


def key_of(job: Job, folder: Path | None) -> str | None:
    """Key of a job for a Triton; None: it is always compiled."""
    source = _source(job.kernel)
    if source is None:
        return None
    given = {name: value for name, value in asdict(job).items() if name != "label"}
    parts = [source, _readers(), _version(folder), os.environ.get("TRITON_DISABLE_LINE_INFO", ""), given]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()[:32]


def found(key: str | None) -> Any:
    """Figures to use instead of compiling; None: compile."""
    if key is None or key not in known() or os.environ.get("ATTNBENCH_KERNEL_CODE") or _draw.randrange(AGAIN) == 0:
        return None
    return known()[key]


def note(key: str | None, figures: Any) -> None:
    """Compare new figures with known ones, and record them for `make figures`.

    Raises:
        RuntimeError: the file has different figures under the same key.
    """
    if key is None:
        return
    plain = json.loads(json.dumps(figures))
    if key in known() and known()[key] != plain:
        raise RuntimeError(f"{FILE.name} says other than the compiler; `make figures` after removing it: {plain}")
    if folder := os.environ.get(SEEN):
        with (Path(folder) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, plain]) + "\n")


def write(folder: Path) -> int:
    """Write the figures that the processes of a run used, and nothing else; returns their number."""
    used: dict[str, Any] = {}
    for path in folder.glob("*.jsonl"):
        used.update(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    text = json.dumps(dict(sorted(used.items())), separators=(",", ":"), sort_keys=True)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
    return len(used)


if __name__ == "__main__":
    print(f"{FILE.name}: {write(Path(sys.argv[1]))} compiled kernels")
