"""what this machine can run, what not, why, and how to fix it (--watch: the GPU live)

Prints the environment, the GPU's clocks and what limits them, the working profilers, tuning commands for this GPU
(printed, never run), and every backend of this kind of device after importing its library.  Without a GPU, omits
everything that needs one, and names torch's CPU build if torch is not installed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnbench.cli.diagnosis import BackendRow, GpuReport, Report
from attnbench.cli.output import Output
from attnbench.errors import Unavailable, UsageError, refusal
from attnbench.machine.device import Device
from attnbench.machine.watch import quantity, words_of
from attnbench.record import Environment, to_dict

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from attnbench.backends.base import Backend
    from attnbench.cli.parser import Parser
    from attnbench.machine.container import Finding
    from attnbench.machine.imports import ImportOutcome
    from attnbench.machine.nvml import Gpu, GpuProcess
    from attnbench.machine.tools import Profiler

WHO = "attnbench doctor"
WATCH_S = 0.5
COLOURS = {"ready": "green", "missing": "default", "broken": "red", "untested": "magenta", "not here": "dim"}
IMPORTS_AT_ONCE = 4
CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""Without the index, pip installs the GPU build, which includes CUDA: several GB."""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; - is stdout")
    parser.add_argument(
        "--watch",
        nargs="?",
        const=str(WATCH_S),
        metavar="SECONDS",
        help=f"show the GPU live, every SECONDS ({WATCH_S}); Ctrl-C ends",
    )
    parser.example(
        "attnbench doctor",
        "attnbench doctor --json - | jq '.backends[] | {name, state}'",
        "attnbench doctor --watch 1 --device cuda:1",
    )


def run(args: argparse.Namespace) -> int:
    """Print the report, or watch the GPU.

    Returns:
        0.

    Raises:
        UsageError: a flag is wrong.
        Unavailable: the device is not available, or there is no GPU to watch.
    """
    from attnbench.machine.devices import resolve
    from attnbench.store.files import check_writable, write_text
    from attnbench.suites.settings import parse_setting

    output = Output()
    if args.watch is not None:
        return _watch(output, args.device, _seconds(args.watch), args.json)
    if args.json not in (None, "-"):
        check_writable(args.json)
    report = examine(resolve(parse_setting("attnbench doctor", "device", args.device)), output)
    text = json.dumps(to_dict(report), indent=2, ensure_ascii=False)
    if args.json == "-":
        output.line(text)
        return 0
    if args.json is not None:
        write_text(args.json, f"{text}\n")
    console = output.console()
    for part in _render(report):
        console.print(part, soft_wrap=isinstance(part, str))
    return 0


def examine(device: Device, output: Output) -> Report:
    """Return the report.

    Args:
        device: device whose GPU is shown.
        output: output for the progress bar.
    """
    from attnbench.machine import advice, devices, fingerprint, tools
    from attnbench.machine.compile_cache import compile_cache
    from attnbench.machine.nvml import Gpu

    gpu: Gpu | None = None
    reason = None if device.on_gpu else devices.why_no_gpu()
    try:  # show a GPU even if torch cannot use it
        gpu = Gpu.open(device if device.on_gpu else Device("cuda"))
    except Unavailable as error:
        reason = reason or str(error)
    environment = fingerprint.environment(device)
    return Report(
        device=str(device),
        environment=environment,
        peak=_peak(environment.gpu),
        gpu=_gpu_report(gpu) if gpu else None,
        gpu_reason=reason,
        profilers=tools.profilers(),
        counters_for_all=tools.counters_for_all(),
        tuning=advice.tuning(gpu) if gpu else [],
        updates=advice.updates(
            {"torch": environment.torch, "triton": environment.triton if gpu else None},
            environment.cuda,
            gpu.driver_cuda() if gpu else None,
        ),
        max_jobs=advice.max_jobs(),
        compile_cache=compile_cache(),
        container=_container(gpu, environment),
        backends=check_backends(device, output),
    )


def check_backends(device: Device, output: Output) -> list[BackendRow]:
    """Import the library of every backend of this kind of device, each in a process of its own, and rate the backend.

    Args:
        device: device to run on.
        output: output for the progress bar.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from attnbench.backends import registry
    from attnbench.machine.fingerprint import usable_cores
    from attnbench.machine.imports import ImportOutcome, try_imports

    backends, kind = registry.all_backends(), device.kind
    wanted = {_module(backend) for backend in backends.values() if kind in backend.devices}
    # Modules imported by this process need no child, such as torch, which takes seconds.
    outcomes = {module: ImportOutcome("imported", None, 0.0) for module in wanted if module in sys.modules}
    modules = sorted(wanted - outcomes.keys())
    screen = output.live_console()
    columns = TextColumn("importing {task.fields[module]}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=screen, transient=True, disable=screen is None) as progress:
        task = progress.add_task("imports", total=len(modules), module="")
        outcomes |= try_imports(
            modules,
            at_once=min(IMPORTS_AT_ONCE, usable_cores() or 1),
            done=lambda module: progress.update(task, advance=1, module=module),
        )
    return [_judge(backend, outcomes.get(_module(backend)), device) for backend in backends.values()]


def _module(backend: Backend) -> str:
    return backend.module or "torch"


def _judge(backend: Backend, outcome: ImportOutcome | None, device: Device) -> BackendRow:
    from attnbench.machine.advice import install_line

    state, reason, version = _state(backend, outcome, device)
    return BackendRow(
        name=backend.name,
        workload=backend.workload,
        title=backend.title,
        state=state,
        version=version,
        reason=reason,
        install=install_line(backend.install),
        tested=backend.tested,
        compiles=backend.compiles,
    )


def _state(backend: Backend, outcome: ImportOutcome | None, device: Device) -> tuple[str, str | None, str | None]:
    """Return state, reason and version; the library is queried only if it imported in a child."""
    from attnbench.backends.registry import BrokenBackend

    kind = device.kind
    if kind not in backend.devices and not isinstance(backend, BrokenBackend):
        return "not here", f"runs on {' and '.join(backend.devices)}, not on {kind}", None
    if outcome is not None and outcome.state == "missing":
        return "missing", outcome.reason, None
    try:
        version = backend.version()
        if outcome is not None and outcome.state == "broken":
            return "broken", outcome.reason, version
        backend.probe()
    except Unavailable as error:
        text = str(error).removeprefix(f"{backend.name}: ").removesuffix(f"; {backend.install}")
        return ("broken" if isinstance(backend, BrokenBackend) else "missing"), text, None
    except Exception as error:  # catches everything: an adapter must not end the report
        return "broken", f"{type(error).__name__}: {error}", None
    if backend.tested is None:
        return "untested", "imports; no run of it on record", version
    return "ready", f"ran on {backend.tested}", version


def _container(gpu: Gpu | None, environment: Environment) -> list[Finding]:
    from attnbench.machine.container import findings, in_container
    from attnbench.machine.devices import count_gpus

    return findings(gpu, environment.cuda, count_gpus()) if in_container() else []


def _gpu_report(gpu: Gpu) -> GpuReport:
    return GpuReport(gpu.name(), gpu.driver(), gpu.state(), gpu.persistence(), gpu.other_processes())


def _peak(gpu_name: str | None) -> str | None:
    from attnbench.machine.peaks import ROWS, peak

    listed = {dtype: peak(gpu_name, dtype) for dtype in ROWS} if gpu_name else {}
    found = next((row for row in listed.values() if row), None)
    if found is None:
        return None
    rates = [f"{dtype} {row.tflops:g}" for dtype, row in listed.items() if row and row.tflops]
    memory = f"; memory {found.memory_tbps:g} TB/s" if found.memory_tbps else ""
    return f"TFLOP/s dense: {', '.join(rates)}{memory} ({found.source})"


def _render(report: Report) -> Iterable[RenderableType]:
    yield "[bold]Environment[/]"
    yield _pairs(_environment_rows(report))
    yield "\n[bold]GPU[/]"
    yield _pairs(_gpu_rows(report))
    yield "\n[bold]Profilers[/]"
    profilers = [one for one in report.profilers if report.gpu or one.name == "torch.profiler"]
    yield _pairs((profiler.name, _profiler(profiler)) for profiler in profilers)
    for profiler in profilers:
        if profiler.export:
            yield f"  [bold]{_plain(profiler.export)}[/]"
    if report.container:
        yield "\n[bold]Container[/]"
        yield _pairs((one.what, f"{one.found}; {one.todo}" if one.todo else one.found) for one in report.container)
    for title, items in (("Tuning", report.tuning), ("To bring up to date", report.updates)):
        if items:
            yield f"\n[bold]{title}[/] (for you to do; nothing here does it)"
            width = max(len(item.command) for item in items)
            yield from (f"  {_plain(item.command):<{width}}  [dim]# {item.why}[/]" for item in items)
    yield f"\n[bold]Backends[/] on {report.device}"
    # Without a GPU, backends that need one are not listed.
    rows = [row for row in report.backends if report.gpu or row.state != "not here"]
    yield _backend_table(rows)
    if hidden := len(report.backends) - len(rows):
        yield f"  [dim]{hidden} more need a GPU; `attnbench list backends` names them[/]"
    lines = {
        row.install: row.name
        for row in report.backends
        if row.state in ("missing", "broken") and _is_command(row.install)
    }
    if lines:
        yield "\n[bold]To install[/]"
        yield from (f"  {_plain(line)}" for line in lines)


def _environment_rows(report: Report) -> Iterable[tuple[str, str | None]]:
    env = report.environment
    yield "system", env.os
    yield "cpu", _join(env.cpu, quantity(env.cores, "cores"), quantity(env.ram_gb, "GB"))
    card = quantity(env.gpu_mem_gb, "GB"), quantity(env.sm_count, "SMs"), quantity(env.l2_mb, "MB L2")
    yield "gpu", _join(env.gpu, *card) or "none"
    if env.gpu:
        yield "data sheet", report.peak or "not listed"
        yield "driver", env.driver
    on_card = [_named("triton", env.triton), _named("CUDA", env.cuda), _named("cuDNN", env.cudnn)]
    yield "python", _join(env.python, _named("torch", env.torch), *(on_card if report.gpu else ()))
    yield (
        "packages",
        _join(
            *(
                f"{name} {version}"
                for name, version in env.packages.items()
                if name not in ("torch", "triton") and (report.gpu or not name.startswith("nvidia"))
            )
        ),
    )
    if report.gpu:
        yield "builds", f"MAX_JOBS={report.max_jobs} by this machine's free memory"
    if cache := report.compile_cache:
        kernels = f"{cache.kernels} kernel{'s' * (cache.kernels != 1)}"
        yield "compile cache", f"{cache.folder}: {kernels}, {quantity(round(cache.mib, 1), 'MiB')}"


def _gpu_rows(report: Report) -> Iterable[tuple[str, str | None]]:
    if report.gpu_reason:
        yield ("note" if report.gpu else "none"), report.gpu_reason
    if not report.gpu:
        if report.environment.cuda:
            yield "torch", f"for CPUs alone: {CPU_TORCH}"
        return
    state = report.gpu.state
    if not report.environment.gpu:
        yield "card", _join(report.gpu.name, _named("driver", report.gpu.driver))
    yield "SM clock", _of(quantity(state.sm_mhz, "MHz"), quantity(state.sm_max_mhz, "MHz"))
    yield "memory clock", _of(quantity(state.mem_mhz, "MHz"), quantity(state.mem_max_mhz, "MHz"))
    yield "held back by", words_of(state.throttle)
    yield "power", _of(quantity(state.power_w, "W"), quantity(state.power_limit_w, "W"))
    yield "heat", quantity(state.celsius, "°C")
    yield "memory", _of(quantity(state.memory_used_mb, "MiB"), quantity(state.memory_total_mb, "MiB"))
    yield "persistence", {True: "on", False: "off", None: None}[report.gpu.persistence]
    yield "others on it", _processes(report.gpu.other_processes)
    if report.counters_for_all is False:
        yield "counters", "for administrators only (ncu needs sudo, or NVreg_RestrictProfilingToAdminUsers=0)"


def _pairs(rows: Iterable[tuple[str, str | None]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=14)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(f"  {name}", style="dim"), Text(value) if value else Text("not reported", style="dim"))
    return table


def _backend_table(rows: list[BackendRow]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for fold in (False, False, False, True):
        table.add_column(no_wrap=not fold, overflow="fold" if fold else "ellipsis")
    for row in rows:
        table.add_row(
            Text(f"  {row.name}"), Text(row.state, style=COLOURS[row.state]), Text(row.version or ""), Text(_why(row))
        )
    return table


def _why(row: BackendRow) -> str:
    """Return the reason without the words that repeat the state."""
    return (row.reason or "").removesuffix(" is not installed" if row.state == "missing" else "")


def _is_command(install: str) -> bool:
    return not install.startswith(("part of", "mend"))


def _profiler(profiler: Profiler) -> str:
    """Return one line of the list of profilers."""
    if profiler.reason:
        return _join(profiler.version, profiler.reason) or ""
    words = f"answers: {profiler.version}"
    return f"{words}, not on the PATH; to put it there:" if profiler.export else words


def _processes(found: tuple[GpuProcess, ...] | None) -> str | None:
    if found is None:
        return None
    return (
        ", ".join(
            _join(f"{process.name or 'process'} (pid {process.pid}", quantity(process.memory_mb, "MiB")) + ")"
            for process in found
        )
        or "nobody"
    )


def _of(now: str | None, most: str | None) -> str | None:
    return f"{now} of {most}" if now and most else now or (f"unknown of {most}" if most else None)


def _named(name: str, version: str | None) -> str | None:
    return f"{name} {version}" if version else None


def _join(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text) or not 0.05 <= float(text) <= 3600:
        raise UsageError(refusal(WHO, "--watch", text, "is not a period", "0.05 to 3600 seconds"))
    return float(text)


def _watch(output: Output, device: str, seconds: float, json_path: str | None) -> int:
    """Show the GPU until Ctrl-C."""
    from attnbench.machine.nvml import Gpu
    from attnbench.machine.watch import watch

    if json_path:
        raise UsageError(refusal(WHO, "--json", json_path, "does not go with --watch", "one of the two"))
    if not re.fullmatch(r"auto|cuda(:\d+)?", device):
        raise UsageError(refusal(WHO, "--device", device, "has nothing to watch", "auto, cuda or cuda:N"))
    gpu = Gpu.open(Device.parse("cuda" if device == "auto" else device))
    try:
        watch(output.console(), gpu, seconds)
    except KeyboardInterrupt:
        pass
    return 0
