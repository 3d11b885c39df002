"""What a kernel's duration is: kernels that stamp their own first and last moment, beside the tools that time them.

Every CTA of a kernel here reads the GPU's global timer (32 ns a tick on an H200) in its first and its last
instructions and stores both.  From the earliest to the latest stamp is the time in which the kernel computed: the
truth, on the same clock that CUPTI's records are on.  What a tool adds to it is the way from the front end to the first
instruction and from the last one to the record.  Held against it, launch by launch: CUPTI through `torch.profiler` (the
timer `cupti`), CUDA events (`events`), and Nsight Compute, which runs the same kernels in a process of its own, with
its caches emptied and not.

    python benchmarks/stamps.py --out benchmarks/results/stamps-h200.json
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl

from attnbench.machine.device import Device
from attnbench.machine.fingerprint import environment
from attnbench.measure.stage import open_stage
from attnbench.measure.subject import Subject
from attnbench.measure.timer import choose
from attnbench.record import to_dict

BATCH = 60
ROOM = 4096
"CTAs that a launch has room for"
KINDS = {
    "spin": [(132, ns) for ns in (0, 2_000, 5_000, 10_000, 20_000, 50_000)] + [(1056, 5_000)],
    "copy": [(132, megabytes) for megabytes in (2, 8, 32, 128)],
    "matmul": [(256, 512), (256, 2048), (1024, 1024)],
}
"CTAs, and nanoseconds of spinning (0: an empty kernel), MiB read, or length of the inner dimension"


@triton.jit
def _now(lane):
    return tl.inline_asm_elementwise(
        "{ mov.u64 $0, %globaltimer; }", "=l,r", [lane], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def _begin(stamps_ptr):
    begun = _now(tl.zeros([1], tl.int32))
    tl.store(stamps_ptr + tl.program_id(0) * 2 + tl.arange(0, 1), begun)
    tl.debug_barrier()
    return begun


@triton.jit
def _end(stamps_ptr):
    tl.debug_barrier()
    tl.store(stamps_ptr + tl.program_id(0) * 2 + 1 + tl.arange(0, 1), _now(tl.zeros([1], tl.int32)))


@triton.jit
def stamped_spin(stamps_ptr, nanoseconds):
    begun = tl.max(_begin(stamps_ptr), axis=0)
    now = begun
    while now - begun < nanoseconds:
        now = tl.max(_now(tl.zeros([1], tl.int32)), axis=0)
    _end(stamps_ptr)


@triton.jit
def stamped_copy(stamps_ptr, target_ptr, source_ptr, blocks, BLOCK: tl.constexpr):
    _begin(stamps_ptr)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(target_ptr + at, tl.load(source_ptr + at))
    _end(stamps_ptr)


@triton.jit
def stamped_matmul(stamps_ptr, out_ptr, a_ptr, b_ptr, length, SIDE: tl.constexpr, STEP: tl.constexpr):
    _begin(stamps_ptr)
    rows, steps = tl.arange(0, SIDE), tl.arange(0, STEP)
    tile = tl.program_id(0).to(tl.int64)
    total = tl.zeros([SIDE, SIDE], tl.float32)
    for start in range(0, length, STEP):
        a = tl.load(a_ptr + (tile % 16 * SIDE + rows[:, None]) * length + start + steps[None, :])
        b = tl.load(b_ptr + (tile // 16 % 16 * SIDE + rows[None, :]) * length + start + steps[:, None])
        total = tl.dot(a, b, total)
    tl.store(out_ptr + tile * SIDE * SIDE + rows[:, None] * SIDE + rows[None, :], total.to(tl.bfloat16))
    _end(stamps_ptr)


class Stamped:
    """A kernel whose launches stamp themselves, each into a row of its own."""

    def __init__(self, kind: str, ctas: int, size: int) -> None:
        self.name, self.ctas = f"{kind} {size} on {ctas}", ctas
        self.stamps = torch.zeros(4 * BATCH, ROOM, 2, dtype=torch.int64, device="cuda")
        self.launches = 0
        self._launch = getattr(self, f"_{kind}")(size)
        self()
        torch.cuda.synchronize()

    def __call__(self) -> None:
        self._launch(self.stamps[self.launches % len(self.stamps)])
        self.launches += 1

    def truth_ms(self, first: int, count: int) -> list[float]:
        """Earliest to latest stamp of some launches."""
        rows = self.stamps[first : first + count, : self.ctas].cpu()
        return [float(row[:, 1].max() - row[:, 0].min()) / 1e6 for row in rows]

    def _spin(self, nanoseconds: int) -> Callable[[torch.Tensor], object]:
        return lambda stamps: stamped_spin[(self.ctas,)](stamps, nanoseconds)

    def _copy(self, megabytes: int) -> Callable[[torch.Tensor], object]:
        source = torch.randn(megabytes * 2**18, device="cuda")
        target = torch.empty_like(source)
        return lambda stamps: stamped_copy[(self.ctas,)](stamps, target, source, source.numel() // 4096, BLOCK=4096)

    def _matmul(self, length: int) -> Callable[[torch.Tensor], object]:
        a, b = (torch.randn(16 * 128, length, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty(self.ctas, 128, 128, device="cuda", dtype=torch.bfloat16)
        return lambda stamps: stamped_matmul[(self.ctas,)](stamps, out, a, b, length, SIDE=128, STEP=64, num_warps=8)


def all_stamped() -> list[Stamped]:
    """One of each kind and size."""
    return [Stamped(kind, *shape) for kind, shapes in KINDS.items() for shape in shapes]


def by_timer(kernel: Stamped, name: str) -> dict:
    """One batch by a timer of the harness, flushes between, and what the launches stamped."""
    timer = choose(name, "cuda")
    with open_stage(Device("cuda"), "cold") as stage:
        subject = Subject(name=kernel.name, call=kernel)
        timer.measure(stage, [(0, subject)] * 10, 0.01, lambda index, phase: None)
        kernel.launches = 0
        readings = timer.measure(stage, [(0, subject)] * BATCH, 0.05, lambda index, phase: None)
    truth = kernel.truth_ms(0, BATCH)
    return {"ms": [reading.ms for reading in readings], "truth_ms": truth}


def watched(out: Path) -> None:
    """What Nsight Compute watches: launches whose stamps are written to a file."""
    found = {}
    for kernel in all_stamped():
        kernel.launches = 0
        for _ in range(20):
            kernel()
        torch.cuda.synchronize()
        found[kernel.name] = kernel.truth_ms(0, 20)
    out.write_text(json.dumps(found))


def by_ncu(cache: str, folder: Path) -> dict[str, dict] | None:
    """Durations as Nsight Compute reads them, in one pass; None where it is not there."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return None
    told = folder / "watched.json"
    command = [
        ncu,
        "--csv",
        "--page",
        "raw",
        "--metrics",
        "gpu__time_duration.sum",
        "--clock-control",
        "none",
        "--cache-control",
        cache,
        "-k",
        "regex:stamped_",
        sys.executable,
        __file__,
        "--out",
        str(told),
        "--watched",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if len(lines) < 2 or not told.exists():
        return {"failed": {"output": (done.stdout + done.stderr)[-500:]}}
    units, *rows = csv.DictReader(lines)
    scale = {"ns": 1e-6, "us": 1e-3, "usecond": 1e-3, "nsecond": 1e-6, "ms": 1.0}[units["gpu__time_duration.sum"]]
    times = [scale * float(row["gpu__time_duration.sum"].replace(",", "")) for row in rows]
    truths = json.loads(told.read_text())
    told.unlink()
    found, first = {}, len(truths)  # each is launched once before, to compile
    for name, truth in truths.items():
        found[name] = {"ms": times[first : first + len(truth)], "truth_ms": truth}
        first += len(truth)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.watched:
        watched(args.out)
        return
    result: dict = {"environment": to_dict(environment(Device("cuda"))), "kernels": {}}
    for kernel in all_stamped():
        result["kernels"][kernel.name] = {name: by_timer(kernel, name) for name in ("cupti", "events")}
    for cache in ("none", "all"):
        for name, found in (by_ncu(cache, args.out.parent) or {}).items():
            result["kernels"].setdefault(name, {})[f"ncu, caches {'kept' if cache == 'none' else 'emptied'}"] = found
    args.out.write_text(json.dumps(result))
    for name, tools in result["kernels"].items():
        print(name, *(f"{tool}: {offset(found)}" for tool, found in tools.items() if "ms" in found), sep="  ")


def offset(found: dict) -> str:
    """Median truth and what the tool reads beyond it."""
    beyond = [1e3 * (ms - truth) for ms, truth in zip(found["ms"], found["truth_ms"], strict=True)]
    return (
        f"{1e3 * statistics.median(found['truth_ms']):.2f} µs {statistics.median(beyond):+.2f} "
        f"[{min(beyond):+.2f} {max(beyond):+.2f}]"
    )


if __name__ == "__main__":
    main()
