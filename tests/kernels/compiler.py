"""A process that compiles jobs with the Triton on its path, and what it finds in the machine code (`Compiled`).

Started by aot.py; it reads one line of JSON for each batch of jobs and answers with one.  `machine_code` disassembles, and
`registers` searches for registers that are read before they are written, or overwritten too early.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
import traceback
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .jobs import Job
from .machine_code import (
    TENSOR_CORE,
    WARPGROUP,
    before_wait,
    counts,
    disassembled,
    early_arrivals,
    handovers,
    instructions_of,
    loops,
    machine_code,
    registers_of,
    warps,
)
from .registers import overwritten, unread, unset

SIXTEEN = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Compiled:
    """The result of compiling a job."""

    registers: int
    "registers of a thread, as the kernel is launched"
    spills: int
    "loads and stores of local memory in the SASS"
    shared: int
    "bytes of shared memory"
    warps: int
    "warps of a program, including those that a specialised loop or `gl.warp_specialize` adds"
    waits: int
    "waits for warpgroup products, in the SASS: as many as products are serialized, which ptxas does where it must copy"
    early: int
    """arrivals at mbarriers that are not directly after a barrier of the partition's warps, in the PTX: one thread arrives
    for all of them, and others may still be reading what it releases"""
    handovers: Mapping[str, int]
    """between programs, in the PTX: how often one thread acquires or releases for all at gpu scope, and how many of these
    are open: global memory is accessed between a release and the barrier before it, or an acquire and the next barrier"""
    unset: Mapping[str, str]
    "uniform registers that some path through the SASS of sm_90 reads without writing them, and where (registers.py)"
    overwritten: Mapping[str, str]
    "registers that are written while a product in flight reads them"
    unread: Mapping[str, str]
    "registers loaded from shared memory whose load may not be complete when a warp arrives at an mbarrier or copies a tile"
    sass: Mapping[str, int]
    "counts of the instructions of interest in the SASS"
    before_wait: Mapping[str, int] = field(default_factory=dict)
    "accesses to global memory before the wait for the end of the kernel before (dependent launch); none without one"
    loops: Sequence[Mapping[str, Mapping[str, int]]] = ()
    """the innermost loops that multiply: `sass` of each, and `beside`, the counts of what is issued while warpgroup products
    (sm_90) are in flight, and so overlaps with them"""

    @property
    def tensor_core(self) -> int:
        """Number of tensor-core matrix products in the code."""
        return sum(self.sass.get(name, 0) for name in TENSOR_CORE)

    @property
    def serialized(self) -> bool:
        """Whether each warpgroup product (sm_90) waits for the previous one: several times slower, without an error."""
        return 1 < sum(self.sass.get(name, 0) for name in WARPGROUP) <= self.waits


def _tuple(plain: Any) -> Any:
    """Undo `_plain`."""
    if isinstance(plain, dict):
        return namedtuple("Fields", plain)(*map(_tuple, plain.values()))
    return tuple(map(_tuple, plain)) if isinstance(plain, list) else plain


def _compile(job: Job) -> Any:
    """Compile a job with Triton."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    module, name = job.kernel.split(":")
    kernel = getattr(importlib.import_module(module), name)
    unknown = {*job.arguments, *job.constants} ^ set(kernel.arg_names)
    if unknown:
        raise TypeError(f"{job.label}: {job.kernel} and the job differ in {', '.join(sorted(unknown))}")
    signature: dict[str, Any] = dict.fromkeys(kernel.arg_names, "constexpr")
    divisible: dict[tuple[int, ...], Any] = {}
    constants: dict[Any, Any] = {arg: _tuple(value) for arg, value in job.constants.items() if arg not in job.arguments}

    def place(path: tuple[int, ...], spelled: Any, value: Any) -> Any:
        """One part of the signature; records what of it is compiled in, and what is divisible by 16."""
        if isinstance(spelled, tuple):
            parts = [place((*path, n), one, value and value[n]) for n, one in enumerate(spelled)]
            return type(spelled)(*parts) if hasattr(spelled, "_fields") else tuple(parts)
        if spelled is None:
            constants[path] = value
            return "constexpr"
        if spelled.endswith(":16"):
            divisible[path] = SIXTEEN
        return spelled.removesuffix(":16")

    for arg, spelled in job.arguments.items():
        path = (kernel.arg_names.index(arg),)
        signature[arg] = place(path, _tuple(spelled), _tuple(job.constants.get(arg)))
    source = (GluonASTSource if kernel.is_gluon() else ASTSource)(kernel, signature, constants, divisible)
    options = {"num_warps": job.num_warps, "num_stages": job.num_stages, **job.options}
    return triton.compile(source, target=GPUTarget("cuda", job.capability, 32), options=options)


def _figures(jobs: Sequence[Job]) -> dict[str, Compiled]:
    """Compile jobs and analyse the results, by label."""
    made = [_compile(job) for job in jobs]
    codes = [machine_code(compiled.asm["cubin"]) for compiled in made]
    found = {}
    for capability in sorted({job.capability for job in jobs}):
        places = [place for place, job in enumerate(jobs) if job.capability == capability]
        for place, text in zip(places, disassembled([codes[place] for place in places], capability), strict=True):
            found[jobs[place].label] = _looked_at(jobs[place], made[place], text)
            _note(jobs[place], codes[place])
    return found


def _looked_at(job: Job, compiled: Any, text: str) -> Compiled:
    ptx, code = compiled.asm["ptx"], instructions_of(text)
    sass = counts(name for _, name, _ in code)
    return Compiled(
        registers=registers_of(compiled.asm["cubin"]),
        spills=sass.pop("LDL", 0) + sass.pop("STL", 0),
        waits=sass.pop("WARPGROUP.DEPBAR", 0),
        early=early_arrivals(ptx),
        handovers=handovers(ptx),
        sass=sass,
        unset=unset(text) if job.capability == 90 else {},
        overwritten=overwritten(text) if job.capability == 90 else {},
        unread=unread(text) if job.capability == 90 else {},
        before_wait=before_wait(name for _, name, _ in code),
        loops=loops(code),
        shared=compiled.metadata.shared,
        warps=warps(ptx, job.num_warps),
    )


def _note(job: Job, code: bytes) -> None:
    """Write a line for benchmarks/kernel_code.py."""
    if path := os.environ.get("ATTNBENCH_KERNEL_CODE"):
        import triton

        fields = {
            "kernel": job.kernel.split(":")[1],
            "label": job.label,
            "capability": job.capability,
            "triton": triton.__version__,
            "sass": hashlib.sha256(code).hexdigest()[:16],
        }
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")


def _serve() -> None:
    """Compile each line of jobs that comes in, and answer it with one line."""
    # Output that a library prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for line in sys.stdin:
            asked = json.loads(line)
            sys.path[:0] = [path for path in asked["paths"] if path not in sys.path]
            try:
                found = _figures([Job(**fields) for fields in asked["jobs"]])
                answer = {"found": {label: asdict(one) for label, one in found.items()}}
            except Exception:
                answer = {"wrong": traceback.format_exc()}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
