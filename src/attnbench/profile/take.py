"""Take a capture: build the profiler's command line, run it, and read its output into a `Capture`."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from attnbench.errors import AttnbenchError, RunFileError, Unavailable, refusal
from attnbench.machine import child
from attnbench.machine.device import Device
from attnbench.machine.tools import Profiler, find_program
from attnbench.profile import job as jobs
from attnbench.profile import ncu_csv, ncu_rep, nsys_sqlite, nsys_text, torch_trace
from attnbench.profile.capture import Capture
from attnbench.profile.categories import Categories
from attnbench.profile.job import Answer, Job
from attnbench.profile.running import Finished, reason, run, shown

TOOLS = ("ncu", "nsys", "torch")
SUFFIX = {"ncu": ".ncu-rep", "nsys": ".nsys-rep", "torch": ".trace.json"}
READ = (".csv", ".sqlite", "_stats.txt")
"""Suffixes of the files derived from a capture."""

SECTIONS = {
    "basic": ("basic", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "WarpStateStats"),
    "roofline": (
        "roofline",
        "LaunchStats",
        "Occupancy",
        "MemoryWorkloadAnalysis",
        "ComputeWorkloadAnalysis",
        "WarpStateStats",
    ),
    "full": ("full",),
}
"""ncu's own set, and the sections it lacks (`ncu --list-sets`) for the counters of the table."""

REPORTS = ("cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum", "nvtx_gpu_proj_sum")
RESET_S = 30.0
BOOST_SINCE = (2025, 3)
"""First version of ncu known to have the option for tensor core boost (2025.3.1)."""
SPECIAL = str.maketrans({letter: f"\\{letter}" for letter in "\\/@,[]+*"})
"""Characters with a meaning in ncu's range expressions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of taking captures."""

    kernel: str | None = None
    "regular expression of kernel names"
    range: str | None = None
    "NVTX ranges, separated by commas: only work launched in one of them"
    set: str = "basic"
    "ncu's section set: basic, roofline, full"
    clock_control: str = "none"
    "none does not lock clocks; base locks them to the base clock while ncu profiles"
    cache_control: str = "all"
    "all flushes the caches before each pass of ncu, none leaves them warm"
    timeout_s: float = 120.0
    force: bool = False
    "replace existing files"
    file: str | None = None
    "name of the capture's file, without suffix; None is profile_{backend}"


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of one profiled process."""

    capture: Capture | None
    reason: str | None
    "why there is no capture"
    left_out: tuple[str, ...] = ()
    "backends that were not launched, with reasons"


def check_device(tool: str, device: str) -> None:
    """Refuse a device on which a tool records nothing.

    Raises:
        Unavailable: the device is a CPU, and the tool is not torch.profiler.
    """
    if tool != "torch" and not Device.parse(device).on_gpu:
        raise Unavailable(
            refusal(
                f"profile {tool}",
                "device",
                "cpu",
                "has no kernels to profile",
                "a GPU",
                "`attnbench profile torch` times the operators of torch on a CPU, and --from "
                "CAPTURE reads a capture taken elsewhere",
            )
        )


def probe(tool: str, device: str) -> Profiler:
    """Find a profiler that can be expected to work.

    Raises:
        Unavailable: the tool records nothing on this device, or does not answer.
    """
    check_device(tool, device)
    if tool == "torch":
        import torch

        kinds = torch.profiler.supported_activities()
        if Device.parse(device).on_gpu and torch.profiler.ProfilerActivity.CUDA not in kinds:
            raise Unavailable("profile torch: this torch records CPU activity only; a CUDA build of torch")
        return Profiler("torch", str(torch.__version__))
    found = find_program(tool)
    if found.reason is not None:
        title = {"ncu": "Nsight Compute", "nsys": "Nsight Systems"}[tool]
        raise Unavailable(f"profile {tool}: {tool} {found.reason}; install {title}; see `attnbench doctor`")
    return found


def commands(
    tool: str, program: str, job_words: Sequence[str], out: Path, options: Options, version: str | None = None
) -> list[list[str]]:
    """Return the command lines of a capture in order; the first takes it, the others convert it.

    Args:
        tool: ncu, nsys or torch.
        program: path of ncu or nsys.
        job_words: command line of the profiled process.
        out: path of the capture without suffix.
        options: options of the capture.
        version: version of the program; None is treated as a current one.
    """
    if tool == "torch":
        return [list(job_words)]
    if tool == "nsys":
        return _nsys(program, job_words, out, options)
    return _ncu(program, job_words, out, options, version)


def _ncu(program: str, job_words: Sequence[str], out: Path, options: Options, version: str | None) -> list[list[str]]:
    whole, *sections = SECTIONS[options.set]
    report = f"{out}.ncu-rep"
    take = [program, "--profile-from-start", "off", "--nvtx", "--set", whole]
    for section in sections:
        take += ["--section", section]
    take += ["--clock-control", options.clock_control, "--cache-control", options.cache_control]
    if options.clock_control == "none" and _year(version) >= BOOST_SINCE:
        take += ["--pipeline-boost-state", "dynamic"]  # by default ncu locks the boost of the tensor cores
    if options.kernel is not None:
        take += ["--kernel-name-base", "demangled", "--kernel-name", f"regex:{options.kernel}"]
    if options.range is not None:
        for name in options.range.split(","):
            take += ["--nvtx-include", f"{name.translate(SPECIAL)}/"]
    take += ["--export", report, *(["--force-overwrite"] if options.force else []), *job_words]
    return [take]


def _year(version: str | None) -> tuple[int, ...]:
    """Return year and release of an ncu: 2025.3.1.0 is (2025, 3)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) if version else BOOST_SINCE


def _nsys(program: str, job_words: Sequence[str], out: Path, options: Options) -> list[list[str]]:
    overwrite = ["--force-overwrite=true"] if options.force else []
    return [
        # Without "--capture-range-end=stop", the end of the window would end the process before it answers.
        [
            program,
            "profile",
            "--trace=cuda,nvtx",
            "--sample=none",
            "--cpuctxsw=none",
            "--capture-range=cudaProfilerApi",
            "--capture-range-end=stop",
            "--cuda-graph-trace=node",
            *overwrite,
            f"--output={out}",
            *job_words,
        ],
        [program, "export", "--type=sqlite", *overwrite, f"--output={out}.sqlite", f"{out}.nsys-rep"],
        [program, "stats", *(f"--report={name}" for name in REPORTS), f"{out}.nsys-rep"],
    ]


def take(tool: str, program: Profiler, job: Job, folder: Path, options: Options, rules: Categories) -> Taken:
    """Take one capture and read it.

    Args:
        tool: ncu, nsys or torch.
        program: from `probe`.
        job: the launches.
        folder: folder for the tool's files.
        options: options of the capture.
        rules: categories.

    Returns:
        The capture, or the reason why there is none.  The tool's files stay in the folder.
    """
    out = (folder / (options.file or jobs.file_name(job.backends))).absolute()
    left = out.with_name(out.name + SUFFIX[tool])
    before = _stamp(left)
    try:
        finished, answer, (first, *others) = _launched(tool, program, job, out, options)
    except Unavailable as error:
        return Taken(None, str(error))
    reasons = answer.reasons if answer else {}
    left_out = tuple(f"{name}: {why.removeprefix(f'{name}: ')}" for name, why in reasons.items())
    if len(reasons) == len(job.backends):
        return Taken(None, "; ".join(left_out))
    if _stamp(left) in (None, before):  # an earlier capture of that name does not count
        return Taken(None, _why(tool, finished, options), left_out)
    try:
        capture = _read(tool, program, out, others, finished, options, rules)
    except AttnbenchError as error:
        return Taken(None, str(error), left_out)
    only = job.backends[0] if len(job.backends) == 1 else None
    capture = capture.of(only, job.case_id if only else None)
    capture = dataclasses.replace(
        capture,
        tool_version=program.version,
        launches=job.launches,
        command=shown(first),
        name=only or capture.name,
        device=capture.device or (answer.gpu if answer else None),
        notes=(*capture.notes, *([] if finished.ok else [f"{_why(tool, finished, options)}; its end may be missing"])),
    )
    return Taken(capture, None, left_out)


def _launched(
    tool: str, program: Profiler, job: Job, out: Path, options: Options
) -> tuple[Finished, Answer | None, list[list[str]]]:
    """Run the tool; return its outcome, the profiled process's answer, and the command lines."""
    log, trace = out.with_name(f"{out.name}.log"), out.with_name(out.name + SUFFIX["torch"])
    if options.force:  # nsys would print an old export
        for path in (log, *(out.with_name(out.name + end) for end in READ)):
            path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="attnbench-") as place:
        answer = Path(place) / "answer.json"
        words = child.command(
            "attnbench.profile.target", str(jobs.write(job, Path(place) / "job.json")), str(answer), str(trace)
        )
        lines = commands(tool, program.path or "", words, out, options, program.version)
        with _clocks_reset(tool, program, options, log) as ended:
            finished = run(lines[0], timeout_s=options.timeout_s, log=log)
            ended.append(finished)
        return finished, jobs.read_answer(answer), lines


@contextmanager
def _clocks_reset(tool: str, program: Profiler, options: Options, log: Path) -> Iterator[list[Finished]]:
    """Unlock the clocks that a killed ncu left locked; the block appends the outcome of each tool to the list."""
    ended: list[Finished] = []
    try:
        yield ended
    finally:
        by_itself = bool(ended) and ended[0].code is not None and ended[0].code >= 0
        if tool == "ncu" and options.clock_control != "none" and not by_itself:
            with suppress(Unavailable):
                run([program.path or "", "--clock-control", "reset"], timeout_s=RESET_S, log=log)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return values that change when a file is rewritten; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(
    tool: str,
    program: Profiler,
    out: Path,
    others: Sequence[Sequence[str]],
    finished: Finished,
    options: Options,
    rules: Categories,
) -> Capture:
    """Read the tool's output; raise with its own complaint if there is none."""
    left = out.with_name(out.name + SUFFIX[tool])
    name = out.name.removeprefix("profile_")
    if tool == "torch" and not finished.ok:
        raise Unavailable(_why(tool, finished, options))
    try:
        if tool == "torch":
            return torch_trace.parse(left, name=name, rules=rules)
        if tool == "nsys":
            return _nsys_capture(out, name, others, options, rules)
        assert program.path is not None
        raw = ncu_rep.page(program.path, left, "raw")
        out.with_name(f"{out.name}.csv").write_text(raw, encoding="utf-8")
        return ncu_csv.parse(
            raw, name=name, source=left.name, rules=rules, advice=ncu_rep.page(program.path, left, "details")
        )
    except (RunFileError, Unavailable) as error:
        if finished.ok:
            raise
        raise Unavailable(f"{_why(tool, finished, options)}; {error}") from None


def _why(tool: str, finished: Finished, options: Options) -> str:
    return reason(tool, finished, options.timeout_s)


def _nsys_capture(
    out: Path, name: str, others: Sequence[Sequence[str]], options: Options, rules: Categories
) -> Capture:
    """Return the capture from the SQLite export; from `nsys stats` if the export fails."""
    export, stats = others
    log = out.with_name(f"{out.name}.log")
    exported = run(export, timeout_s=options.timeout_s, log=log)
    table = out.with_name(f"{out.name}_stats.txt")
    table.unlink(missing_ok=True)
    printed = run(stats, timeout_s=options.timeout_s, log=table)
    if not printed.ok:  # before 2022.4 reports had other names; without names nsys prints its defaults
        table.unlink(missing_ok=True)
        printed = run(
            [word for word in stats if not word.startswith("--report=")], timeout_s=options.timeout_s, log=table
        )
    database = out.with_name(f"{out.name}.sqlite")
    if exported.ok and database.is_file():
        return nsys_sqlite.parse(database, name=name, rules=rules)
    if not printed.ok:
        raise Unavailable(_why("nsys", exported, options))
    return nsys_text.parse(printed.text, name=name, source=table.name, rules=rules)
