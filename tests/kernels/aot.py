"""Kernels compiled ahead of time, without a GPU, and what came out: registers, spills, shared memory, SASS.

Jobs travel to processes of their own, one of the pinned Triton and one of the oldest supported (`OLDEST`, put beside
the environment by `make test`).  The two run at the same time, read nobody's compile cache, and serve whatever tests
the process that started them runs.

    jobs = [Job("fwd-128", "attnbench.kernels.some:kernel", {"x_ptr": "*bf16:16", "rows": "i32"},
                {"BLOCK": 128}, capability=90, num_warps=8)]
    for triton, found in compile_with(tritons(), jobs).items():
        assert found["fwd-128"].tensor_core and not found["fwd-128"].spills

`recorded` makes the jobs of whatever a launcher launches, with the arguments it gives:

    with recorded(some_module, "kernel", capability=90) as jobs:
        launch(x, config)                       # launches nothing; tensors may lie on the CPU or be "meta"

With ``ATTNBENCH_KERNEL_CODE`` naming a file, each kernel compiled adds a line to it: what was compiled and a hash of
its SASS.  `benchmarks/kernel_code.py` compares two of them, for a refactoring that must not change the machine code.
``TRITON_DISABLE_LINE_INFO=1`` belongs to both: line numbers alone change what ptxas of Triton 3.6 makes of one PTX.

Run-time arguments are spelled as Triton's signatures spell them; ``:16`` behind one says that its value is
divisible by 16, as the launcher finds out of every aligned pointer and stride.  A kernel in Gluon is a job like any
other; its descriptors are spelled with how a tile lies in shared memory.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import figures
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

ROOT = Path(__file__).resolve().parents[2]
OLDEST = ROOT / ".venv" / "triton-3.6"
NO_OLDEST = "Triton 3.6 is not there; `make test` installs it"
EVERY = bool(os.environ.get("ATTNBENCH_EVERY_KERNEL"))
"""Whether tests compile all that they list, as `make kernels` does, or what is to hold at every change."""


@dataclass(frozen=True)
class Job:
    """One kernel, one set of constants, one card."""

    label: str
    kernel: str
    "module:name"
    arguments: Mapping[str, Any]
    """run-time arguments by name: *bf16:16, i32, fp32, tensordesc<bf16[64,128]>; of a tuple a list of them, or by name
    where it has names, None for what is compiled in and stands in `constants`"""
    constants: Mapping[str, Any]
    capability: int
    "90 is sm_90"
    num_warps: int = 4
    num_stages: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    "further options of the compiler, such as maxnreg"


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a job."""

    registers: int
    "of a thread, as the kernel is launched"
    spills: int
    "loads and stores of local memory in the SASS"
    shared: int
    "bytes of shared memory"
    warps: int
    "of a program, those that a specialised loop or `gl.warp_specialize` adds included"
    waits: int
    "for warpgroup products, in the SASS: as many as products are serialized, which ptxas does where it must copy"
    early: int
    """arrivals at mbarriers that do not follow at once upon a barrier of the partition's warps, in the PTX: one thread
    arrives for all of them, and others may still read what it says has been read"""
    handovers: Mapping[str, int]
    """between programs, in the PTX: how often one thread acquires or releases for all at gpu scope, and how many of
    these are open: global memory is touched between a release and the barrier before it, or an acquire and the next"""
    unset: Mapping[str, str]
    "registers that a path through the SASS of sm_90 reads and has not written, and where: see registers.py"
    overwritten: Mapping[str, str]
    "registers of it that are written while a product in flight reads them"
    unread: Mapping[str, str]
    "registers of it, loaded from shared memory, that a warp may wait for where an mbarrier is told or a tile copied"
    sass: Mapping[str, int]
    "how often each instruction of interest stands in the SASS"
    before_wait: Mapping[str, int] = field(default_factory=dict)
    "accesses to global memory before the wait for the end of the kernel before (dependent launch); none without one"
    loops: Sequence[Mapping[str, Mapping[str, int]]] = ()
    """the innermost loops that multiply: `sass` of each, and `beside`, what of it stands where warpgroup products
    (sm_90) have been issued and not yet waited for: it runs beside them"""

    @property
    def tensor_core(self) -> int:
        """Matrix products of the tensor cores in the code."""
        return sum(self.sass.get(name, 0) for name in TENSOR_CORE)

    @property
    def serialized(self) -> bool:
        """Whether each warpgroup product (sm_90) waits for the one before: several times slower, and no error."""
        return 1 < sum(self.sass.get(name, 0) for name in WARPGROUP) <= self.waits


@contextmanager
def recorded(module: Any, *names: str, capability: int) -> Iterator[list[Job]]:
    """Launch none of these kernels of a module while open, but note each launch as a job.

    Args:
        module: whose attributes the kernels are, not imported to be interpreted.
        names: of the kernels.
        capability: of the card the jobs are for.

    Yields:
        The jobs so far, labelled with the kernel's name and a number.
    """
    jobs: list[Job] = []
    kernels = {name: getattr(module, name) for name in names}
    for name, kernel in kernels.items():
        setattr(module, name, _Launches(jobs, name, kernel, capability))
    try:
        yield jobs
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)


class _Launches:
    """Stands for a kernel: ``kernel[grid](...)`` notes a job."""

    def __init__(self, jobs: list[Job], name: str, kernel: Any, capability: int) -> None:
        self.jobs, self.name, self.kernel, self.capability = jobs, name, kernel, capability

    def __getitem__(self, grid: tuple[int, ...]) -> _Launches:
        return self

    def __call__(self, *values: Any, **named: Any) -> None:
        given = dict(zip(self.kernel.arg_names, values, strict=False)) | named
        options = {name: given.pop(name) for name in list(given) if name not in self.kernel.arg_names}
        constexprs = {param.name for param in self.kernel.params if param.is_constexpr}
        unseen = {param.name for param in self.kernel.params if param.do_not_specialize}
        spelled = {
            name: _spell(value, unseen=name in unseen) for name, value in given.items() if name not in constexprs
        }
        arguments = {name: text for name, text in spelled.items() if text is not None}
        self.jobs.append(
            Job(
                f"{self.name} {len(self.jobs)}",
                f"{self.kernel.fn.__module__}:{self.kernel.fn.__name__}",
                arguments,
                {
                    name: _plain(value)
                    for name, value in given.items()
                    if name not in arguments or isinstance(value, tuple)
                },
                self.capability,
                options.pop("num_warps", 4),
                options.pop("num_stages", 3),
                options,
            )
        )


SIXTEEN = [["tt.divisibility", 16]]
_SPELLED = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "bool": "i1",
    "float8_e4m3fn": "fp8e4nv",
}


def _plain(value: Any) -> Any:
    """A tuple as JSON has it: a list, or by name where it has names; a tensor in it is no constant, and is left out."""
    if not isinstance(value, tuple):
        return None if hasattr(value, "data_ptr") else value
    plain = [_plain(one) for one in value]
    return dict(zip(value._fields, plain, strict=True)) if hasattr(value, "_fields") else plain


def _tuple(plain: Any) -> Any:
    """What `_plain` made plain."""
    if isinstance(plain, dict):
        return namedtuple("Fields", plain)(*map(_tuple, plain.values()))
    return tuple(map(_tuple, plain)) if isinstance(plain, list) else plain


def _spell(value: Any, *, unseen: bool) -> Any:
    """A run-time argument as signatures spell it; None for what the launcher would compile in: None and 1.

    Of an `unseen` one, which is not to be specialised, only the type is looked at.
    """
    if isinstance(value, tuple):  # of whose numbers the launcher looks at each, whatever it is told
        spelled = [_spell(one, unseen=False) for one in value]
        return dict(zip(value._fields, spelled, strict=True)) if hasattr(value, "_fields") else spelled
    if value is None or (type(value) is int and value == 1 and not unseen):
        return None
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return ("i32" if -(2**31) <= value < 2**31 else "i64") + ":16" * (value % 16 == 0 and not unseen)
    if isinstance(value, float):
        return "fp32"
    dtype = _SPELLED[str(getattr(value, "base", value).dtype).removeprefix("torch.")]
    if hasattr(value, "block_shape"):
        tile = f"{dtype}[{','.join(map(str, value.block_shape))}]"
        return f"tensordesc<{tile},{value.layout!r}>" if hasattr(value, "layout") else f"tensordesc<{tile}>"
    return f"*{dtype}" + ":16" * (value.data_ptr() % 16 == 0)


def listed(held: Mapping[str, Sequence[Any]], more: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """What each Triton compiles: what is `held` at every change, and `more` where all is compiled."""
    return {version: [*cells, *(more.get(version, ()) if EVERY else ())] for version, cells in held.items()}


def tritons() -> dict[str, Path | None]:
    """The Tritons that are here: the pinned one (None: as installed), and the oldest supported where it is."""
    return {"pinned": None} | ({"3.6": OLDEST} if (OLDEST / ".ready").is_file() else {})


def compile_with(versions: Mapping[str, Path | None], jobs: Sequence[Job]) -> dict[str, dict[str, Compiled]]:
    """Compile every job with every Triton, the Tritons in parallel.

    Args:
        versions: name to the folder put in front of the Python path, as `tritons` gives them.
        jobs: with labels of their own, of modules on the Python path or in folders of ``PYTHONPATH``.

    Returns:
        By name of the Triton and label of the job.

    Raises:
        RuntimeError: a job did not compile, and the message ends with the compiler's, or what came of it would give
            wrong values, by what registers.py says.
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
        # An answer that nobody waited for would be taken for that to the next question.
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
    """A process of one Triton that compiles whatever comes, until the tests end: to start one takes seconds."""

    def __init__(self, folder: Path | None) -> None:
        ours = [str(ROOT / "src"), str(ROOT / "tests")]
        paths = [str(folder)] * (folder is not None) + [*ours, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "TRITON_DEFAULT_FP_FUSION": "1"}
        environment.pop("TRITON_INTERPRET", None)
        command = [sys.executable, "-P", "-m", "kernels.aot"]
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
        """End it: at the end of what it reads, or at once."""
        if kill:
            self._process.kill()
        self._process.communicate()
        self._said.close()


_compilers: dict[Path | None, _Compiler] = {}


@atexit.register
def _close() -> None:
    for compiler in _compilers.values():
        compiler.close()


# ── in the other process ───────────────────────────────────────────────────────────────────────────


def _compile(job: Job) -> Any:
    """What Triton makes of it."""
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
        """A part of the signature; notes what of it is compiled in, and what 16 divides."""
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
    """Compile them, and look at what came of each, by its label."""
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
    """A line for benchmarks/kernel_code.py."""
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
    """Compile each line of jobs that comes in, and answer it by a line."""
    # What a library prints is no answer.
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
