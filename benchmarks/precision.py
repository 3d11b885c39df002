"""How far the numbers hold: the harness beside `triton.testing.do_bench`, on eight attention kernels.

For each kernel and each of `--repeats` repeats, in one process: do_bench's median; the harness with
the same kernel entered twice (A/A), whose first median is "the time" and whose ratio ought to be 1.
Then two pairs with a known answer (A/B): a spin kernel of n and 1.01 n cycles, and a matmul looped
100 and 101 times.  Writes everything, raw medians included, to one JSON file.

Two kernels that the power limit holds back are entered twice in the sustained regime too.
What a duration is, and what Nsight Compute makes of it: `stamps.py`.

    python benchmarks/precision.py --out benchmarks/results/precision-h200.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from attnbench.machine.device import Device
from attnbench.machine.fingerprint import environment
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import GroupTiming, sample
from attnbench.measure.subject import Subject
from attnbench.record import to_dict
from attnbench.stats.ratio import paired_ratio

SHAPES = ((1, 8, 256, 64), (2, 8, 1024, 64), (4, 16, 4096, 128), (1, 16, 16384, 128))
KERNELS = [(*shape, kind) for shape in SHAPES for kind in ("flash", "cudnn")]
POWER_LIMITED = [kernel for kernel in KERNELS if kernel[2] >= 4096 and kernel[4] == "cudnn"]
TICK_MS = 3.2e-5


def attention(b: int, h: int, s: int, d: int, kind: str) -> Callable[[], object]:
    """Pinned SDPA forward, bf16."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    pinned = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[kind]
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def call() -> object:
        with torch.no_grad(), sdpa_kernel(pinned):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return call


def looped_matmul(times: int) -> Callable[[], object]:
    """`times` products in one graph, so that 1 % more work is 1 % more kernels and nothing else."""
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            torch.mm(a, b, out=out)
    return graph.replay


def spin(cycles: int) -> Callable[[], object]:
    """A kernel that counts clock cycles."""
    return lambda: torch.cuda._sleep(cycles)


def pair(
    a: Callable[[], object], b: Callable[[], object], seed: int, args: argparse.Namespace, regime: str = "burst"
) -> GroupTiming:
    """Two closures as a group."""
    subjects = [Subject(name="a", call=a), Subject(name="b", call=b)]
    plan = Plan(seed=seed, max_seconds=args.seconds, rel_ci=args.rel_ci, regime=regime)
    return sample(subjects, device=Device("cuda"), plan=plan)


def ratio(group: GroupTiming) -> dict[str, float | None]:
    """Baseline over own within rounds."""
    a, b = (dict(zip(t.rounds, t.samples_ms, strict=True)) for t in group.timings)
    found = paired_ratio(a, b, tick=TICK_MS)
    return {"ratio": found.ratio, "low": found.ci_low, "high": found.ci_high}


def repeat(kernel: tuple, call: Callable[[], object], number: int, args: argparse.Namespace) -> dict:
    """One repeat of one kernel: do_bench, then A/A."""
    from triton.testing import do_bench

    started = time.perf_counter()
    theirs = do_bench(call, warmup=25, rep=60, return_mode="median")
    middle = time.perf_counter()
    group = pair(call, call, number, args)
    ended = time.perf_counter()
    first = group.timings[0]
    clocks = [c for c in first.sm_mhz if c]
    watts = [w for w in group.power.watts if w] if group.power else []
    return {
        "do_bench_ms": theirs,
        "do_bench_s": middle - started,
        "median_ms": statistics.median(first.samples_ms),
        "samples": len(first.samples_ms),
        "sampling_s": group.sampling_s,
        "total_s": ended - middle,
        "device_s_per_backend": sum(sum(t.samples_ms) for t in group.timings) / 2e3,
        "stopped_by": first.stopped_by,
        "sm_mhz": [min(clocks), max(clocks)] if clocks else None,
        "watts": max(watts) if watts else None,
        "host_ms": first.host_ms,
        "notes": first.notes,
        "kernels": first.kernels,
        "kernel_ms": first.kernel_ms,
        **ratio(group),
    }


def sustained(call: Callable[[], object], number: int, args: argparse.Namespace) -> dict:
    """One A/A repeat at the power limit."""
    group = pair(call, call, number, args, regime="sustained")
    first = group.timings[0]
    clocks = [c for c in first.sm_mhz if c]
    watts = [w for w in group.power.watts if w] if group.power else []
    return {
        "median_ms": statistics.median(first.samples_ms),
        "samples": len(first.samples_ms),
        "sm_mhz": [min(clocks), max(clocks)] if clocks else None,
        "watts": max(watts) if watts else None,
        **ratio(group),
    }


def spread(values: list[float]) -> float:
    """(max - min) / median."""
    return (max(values) - min(values)) / statistics.median(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.4, help="sampling time of a pair")
    parser.add_argument("--rel-ci", type=float, default=0.0005)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    settings = vars(args) | {"out": args.out.name}
    result: dict = {"environment": to_dict(environment(Device("cuda"))), "settings": settings}
    result |= {"aa": [], "sustained": [], "ab": []}
    for kernel in KERNELS:
        call = attention(*kernel)
        call()
        torch.cuda.synchronize()
        rows = [repeat(kernel, call, number, args) for number in range(args.repeats)]
        result["aa"].append({"kernel": kernel, "rows": rows})
        args.out.write_text(json.dumps(result, indent=1))
    for kernel in POWER_LIMITED:
        call = attention(*kernel)
        rows = [sustained(call, number, args) for number in range(args.repeats)]
        result["sustained"].append({"kernel": kernel, "rows": rows})
    known = {
        "spin 20 µs": (spin(40_000), spin(40_400)),
        "spin 1 ms": (spin(2_000_000), spin(2_020_000)),
        "matmul": (looped_matmul(100), looped_matmul(101)),
    }
    for name, (a, b) in known.items():
        a(), b()
        torch.cuda.synchronize()
        rows = [ratio(pair(a, b, number, args)) for number in range(args.repeats)]
        result["ab"].append({"pair": name, "true": 1 / 1.01, "rows": rows})
        args.out.write_text(json.dumps(result, indent=1))
    report(result)


def report(result: dict) -> None:
    for item in result["aa"]:
        rows = item["rows"]
        worst = max((row["ratio"] for row in rows), key=lambda r: abs(r - 1))
        ours, theirs = [r["median_ms"] for r in rows], [r["do_bench_ms"] for r in rows]
        keys = ("samples", "total_s", "device_s_per_backend")
        middle = {key: statistics.median(row[key] for row in rows) for key in keys}
        print(
            f"{item['kernel']!s:30} do_bench {1e3 * statistics.median(theirs):8.1f} µs {100 * spread(theirs):5.1f} %  "
            f"ours {1e3 * statistics.median(ours):8.2f} µs {100 * spread(ours):5.2f} %  A/A worst {worst:.5f}  "
            f"n {middle['samples']:.0f}  {middle['total_s']:.2f} s  device {middle['device_s_per_backend']:.3f} s  "
            f"clock {rows[-1]['sm_mhz']} {rows[-1]['stopped_by']} {rows[-1]['notes']}"
        )
    for item in result["sustained"]:
        worst = max((row["ratio"] for row in item["rows"]), key=lambda r: abs(r - 1))
        ours = [row["median_ms"] for row in item["rows"]]
        print(
            f"{item['kernel']!s:30} sustained {1e3 * statistics.median(ours):8.2f} µs {100 * spread(ours):5.2f} %  "
            f"A/A worst {worst:.5f}  clock {item['rows'][-1]['sm_mhz']}  {item['rows'][-1]['watts']} W"
        )
    for item in result["ab"]:
        ratios = [row["ratio"] for row in item["rows"]]
        right = sum(row["high"] is not None and row["high"] < 1 for row in item["rows"])
        print(
            f"{item['pair']:12} true {item['true']:.5f}  seen {min(ratios):.5f} to {max(ratios):.5f}  "
            f"below 1: {sum(r < 1 for r in ratios)}/{len(ratios)}, interval too: {right}/{len(ratios)}"
        )


if __name__ == "__main__":
    main()
