"""Our block-sparse attention beside our dense forward: speed over density, interleaved, one group a shape.

A group is the dense kernel and, for each density, the sparse one on maps with equal and with unequal rows, and the
making of the lists.  E is the speed-up over dense, times the share of the dense work that the map keeps: 1 is ideal.
Lists are made before; their time is a row of its own.  All samples go to one JSON file.

    python benchmarks/flash_sparse.py --out benchmarks/results/flash-sparse-h200.json
    python benchmarks/flash_sparse.py --only 64x64 --out /tmp/small.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from attnbench.kernels.flash.sparse.config import Shape, default_config
from attnbench.machine.device import Device
from attnbench.machine.fingerprint import environment
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import sample
from attnbench.measure.subject import Subject
from attnbench.record import to_dict
from attnbench.stats.ratio import paired_ratio
from attnbench.workloads.sparse.case import SparseCase
from attnbench.workloads.sparse.work import density

PATTERNS = {"random": "equal", "random-uneven": "unequal"}
DENSE, LISTS = "dense", "lists"
ALL = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
BARS = {
    32768: {0.1: 0.75, 0.2: 0.85, 0.3: 0.92, 0.5: 0.92, 0.7: 0.92},
    16384: {0.1: 0.65, 0.2: 0.80, 0.3: 0.88, 0.5: 0.88, 0.7: 0.88},
    17776: {0.3: 0.85, 0.5: 0.85, 0.7: 0.85},
}
"Least E of blocks of 128 x 128 by rows and density; of 64 x 64 those of the fastest peer as it was measured."
SMALL = {0.1: 0.62, 0.3: 0.72, 0.5: 0.75}
CAUSAL_ROOM, FULL_LEAST = 0.05, 0.97


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A group: one shape, its densities, and the configurations of ours; an empty one is the default."""

    name: str
    seqlen: int
    heads: int = 16
    headdim: int = 128
    block: str = "128x128"
    causal: bool = False
    densities: tuple[float, ...] = ALL
    patterns: tuple[str, ...] = tuple(PATTERNS)
    forms: tuple[str, ...] = ("",)

    def case(self, kept: float, pattern: str) -> SparseCase:
        """The case of the workload whose map this is."""
        return SparseCase(
            batch=1,
            seqlen=self.seqlen,
            nheads=self.heads,
            headdim=self.headdim,
            causal=self.causal,
            dtype="bf16",
            block=self.block,
            pattern="full" if kept == 1 else pattern,
            density=kept,
        )

    @property
    def default(self) -> str:
        """Name of the tuned default of an H200."""
        rows, keys = self.case(1, "full").block_shape
        return default_config(Shape(dim=self.headdim, block_q=rows, block_k=keys)).short

    def bar(self, kept: float) -> float | None:
        """Least E of a density; None where nothing is asked."""
        if (self.block, self.headdim, kept) == ("128x128", 128, 1):
            return FULL_LEAST
        known = (
            SMALL
            if self.block == "64x64" and self.headdim == 128 and self.seqlen == 16384
            else (BARS.get(self.seqlen, {}) if self.block == "128x128" else {})
        )
        least = known.get(kept)
        return None if least is None else least - CAUSAL_ROOM * self.causal


SWEEPS = (
    Sweep(name="128-dims", seqlen=32768),
    Sweep(name="128-dims", seqlen=16384),
    Sweep(name="causal", seqlen=32768, causal=True),
    Sweep(name="causal", seqlen=16384, causal=True),
    Sweep(
        name="64-dims",
        seqlen=17776,
        heads=30,
        headdim=64,
        densities=(0.3, 0.5, 0.7, 1.0),
        forms=("m192n128w12s4-ws-lazy", "m256n64w16s6-ws-lazy", "m64n128w4s2-ws-lazy-x2"),
    ),
    Sweep(
        name="64x64",
        seqlen=16384,
        block="64x64",
        densities=(0.1, 0.3, 0.5),
        forms=(
            "m192n64w12s5-ws-lazy",
            "m128n64w8s6-ws-lazy",
            "m64n64w4s3-ws-lazy-x2",
            "m64n64w4s3-ws-lazy-rs-x2",
            "m64n128w4s3-ws-joint-lazy-x2",
        ),
    ),
    Sweep(
        name="64x64",
        seqlen=16384,
        headdim=64,
        block="64x64",
        densities=(0.1, 0.3, 0.5),
        forms=("m192n64w12s6-ws-lazy", "m64n64w4s3-ws-lazy-x3", "m64n128w4s2-ws-lazy-x2"),
    ),
    Sweep(
        name="128x64",
        seqlen=16384,
        block="128x64",
        densities=(0.1, 0.3, 0.5),
        patterns=("random",),
        forms=("m192n64w12s5-ws-lazy", "m128n64w8s4-ws-lazy", "m128n128w8s2-ws-deep-lazy"),
    ),
    Sweep(
        name="64x128",
        seqlen=16384,
        block="64x128",
        densities=(0.1, 0.3, 0.5),
        patterns=("random",),
        forms=("m192n64w12s5-ws-lazy", "m64n64w4s3-ws-lazy-x2"),
    ),
)


def measure(sweep: Sweep, seconds: float, device: Device) -> dict[str, Any]:
    """Sample a group; its rows with all samples."""
    import torch

    from attnbench.kernels.flash import api as dense
    from attnbench.kernels.flash.sparse import api as sparse
    from attnbench.workloads.sparse.inputs import make_inputs

    inputs = make_inputs(sweep.case(1, "full"), seed=0, kind="normal", device=str(device))
    q, k, v = inputs.q, inputs.k, inputs.v
    out, lse = torch.empty_like(q), torch.empty(1, sweep.heads, sweep.seqlen, device=q.device)
    whole = dense.problem_of(q, k, v, causal=sweep.causal)
    form = dense.default_forward(q, k, v, whole)
    rows: list[dict[str, Any]] = [{"what": DENSE, "config": form.short, "kept": 1.0}]
    calls: list[Callable[[], Any]] = [lambda: dense.launch_forward(q, k, v, out, lse, whole, form)]
    problem = sparse.sparse_problem_of(q, k, v, block=sweep.case(1, "full").block_shape, causal=sweep.causal)
    for kept in sweep.densities:
        for pattern in sweep.patterns if kept < 1 else ("full",):
            case = sweep.case(kept, pattern)
            blocks = make_inputs(case, seed=0, kind="zeros", device=str(device)).block_map
            made = {"density": kept, "pattern": pattern, "kept": density(case)}
            for short in sweep.forms:
                config = sparse.config_for(short or None, q, k, v, problem)
                make = partial(sparse.make_lists, blocks, q, k, block=problem.block, causal=sweep.causal, config=config)
                rows += [made | {"what": what, "config": config.short} for what in ("sparse", LISTS)]
                calls += [partial(sparse.launch_sparse, q, k, v, out, lse, make(), problem, config), make]
    for call in calls:
        call()
    torch.cuda.synchronize()
    group = sample(
        [Subject(name=str(number), call=call) for number, call in enumerate(calls)],
        device=device,
        plan=Plan(max_seconds=seconds, rel_ci=0.003),
    )
    for row, timing in zip(rows, group.timings, strict=True):
        row |= {"samples_ms": timing.samples_ms, "rounds": timing.rounds, "sm_mhz": timing.sm_mhz}
    return asdict(sweep) | {"timer": group.timings[0].timer, "rows": rows}


def efficiency(group: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[float, float | None, float | None]:
    """E of a row within rounds, and its interval: dense time over its own, times the share of the work it keeps."""
    dense, own = (dict(zip(one["rounds"], one["samples_ms"], strict=True)) for one in (group["rows"][0], row))
    found = paired_ratio(dense, own)
    low, high = (None if bound is None else bound * row["kept"] for bound in (found.ci_low, found.ci_high))
    return found.ratio * row["kept"], low, high


def sweep_of(group: Mapping[str, Any]) -> Sweep:
    """What a measured group was to be."""
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in group.items()
        if name in Sweep.__dataclass_fields__
    }
    return Sweep(**values)


def lines_of(group: Mapping[str, Any]) -> list[str]:
    """A group as text: dense, then a line a density, pattern and configuration, with what the bar says."""
    sweep, (dense, *rows) = sweep_of(group), group["rows"]
    work = 4 * sweep.heads * sweep.seqlen**2 * sweep.headdim / (2 if sweep.causal else 1)
    ms = statistics.median(dense["samples_ms"])
    lines = [
        f"{sweep.name}: {sweep.seqlen} rows, {sweep.heads} heads of {sweep.headdim}, {sweep.block}, "
        f"{'causal' if sweep.causal else 'full'}; dense {ms:.3f} ms, {work / ms / 1e9:.0f} TFLOP/s"
    ]
    for row in rows:
        own = statistics.median(row["samples_ms"])
        head = f"  {row['density']:4g} {row['pattern']:13} {row['config']:26} {own:8.3f} ms"
        if row["what"] == LISTS:
            lines.append(f"{head}  lists, {own / ms:.1%} of dense")
            continue
        found, low, high = efficiency(group, row)
        within = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
        least = sweep.bar(row["density"])
        word = "" if least is None else f"  bar {least:.2f}: {'reached' if found >= least else 'BELOW'}"
        lines.append(f"{head}  E {found:.3f}{within}{word}")
    return lines


def below(groups: Sequence[Mapping[str, Any]]) -> int:
    """How many rows of the defaults miss their bar."""
    return sum(
        efficiency(group, row)[0] < least
        for group in groups
        for row in group["rows"]
        if row["what"] == "sparse"
        and row["config"] == sweep_of(group).default
        and (least := sweep_of(group).bar(row["density"])) is not None
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write after each group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="comma list of names of groups")
    parser.add_argument("--seconds", type=float, default=2.0, help="sampling time of a group, at most")
    args = parser.parse_args(arguments)
    names = args.only.split(",") if args.only else sorted({sweep.name for sweep in SWEEPS})
    if unknown := set(names) - {sweep.name for sweep in SWEEPS}:
        parser.error(
            f"--only={','.join(sorted(unknown))} is not known; of {', '.join(sorted({sweep.name for sweep in SWEEPS}))}"
        )
    device = Device("cuda")
    result: dict[str, Any] = {"environment": to_dict(environment(device)), "seconds": args.seconds, "groups": []}
    for sweep in SWEEPS:
        if sweep.name in names:
            group = measure(sweep, args.seconds, device)
            result["groups"].append(group)
            print("\n".join(lines_of(group)), flush=True)
            args.out.write_text(json.dumps(result))
    missed = below(result["groups"])
    print(f"{missed} rows below their bar")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
