"""Our 8-bit and block-sparse kernels step by step: what each idea is worth, interleaved, a group a shape and case.

A step is a configuration of the kernel, and of block-sparse ones also the order in which rows of the map are taken.  All
steps of a group are sampled in one interleaved run, the kernel alone: 8-bit tensors and lists are made before.  The
output of each is first compared with that of the simplest step.  All samples go to one JSON file.

    python benchmarks/ladder.py --kernel flash-sparse --out benchmarks/results/flash-sparse-ladder-h200.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attnbench.backends.flash_quant_call import QuantSession
from attnbench.backends.flash_sparse_quant_call import SparseQuantCall
from attnbench.machine.device import Device
from attnbench.machine.fingerprint import environment
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import sample
from attnbench.measure.subject import Subject
from attnbench.record import to_dict
from attnbench.stats.ratio import paired_ratio
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.work import work as dense_work
from attnbench.workloads.sparse.case import SparseCase
from attnbench.workloads.sparse.work import work as sparse_work

MAP, LONGEST, SECTIONS = "as in the map", "longest first", "longest first, by sections"
"Orders of the rows of a map: of all heads one after another; sorted over all heads; sorted within heads that fit the L2."
FAR = {"flash-sparse": 0.02, "flash-quant": 0.06, "flash-sparse-quant": 0.06}
"""Largest relative L1 distance between outputs of two steps, which round weights against other maxima: twice the rounding
of 16 bits, and what 8 bits may be off the truth."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One idea more than the step that it is held against."""

    name: str
    config: str
    over: str = ""
    "name of the step that it is held against; empty: the one before"
    rows: str = SECTIONS
    "order of the rows of a map"


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Steps of one shape."""

    headdim: int
    steps: tuple[Step, ...]
    block: str = ""
    "queries x keys; empty: dense"


@dataclass(frozen=True, kw_only=True)
class Of:
    """What a column of the table measures: the mask, and of a map its pattern and density."""

    causal: bool = False
    pattern: str = ""
    density: float = 1.0

    @property
    def said(self) -> str:
        """In words, for the head of the table."""
        mask = "causal" if self.causal else "full"
        rows = {"random": "equal rows", "random-uneven": "unequal rows"}.get(self.pattern)
        return f"{mask}, {rows}, density {self.density:g}" if rows else mask


MAPS = (
    Of(pattern="random", density=0.1),
    Of(pattern="random", density=0.5),
    Of(pattern="random-uneven", density=0.5),
    Of(pattern="random", density=0.5, causal=True),
)
COLUMNS = {"flash-sparse": MAPS, "flash-quant": (Of(), Of(causal=True)), "flash-sparse-quant": MAPS}
"What is measured of each kernel."
LADDERS = {
    "flash-sparse": (
        Ladder(
            headdim=128,
            block="128x128",
            steps=(
                Step(name="portable", config="m64n64w4s3", rows=MAP),
                Step(name="large tiles", config="m128n128w8s2", rows=MAP),
                Step(name="ws", config="m128n128w8s2-ws", over="portable", rows=MAP),
                Step(name="longest first", config="m128n128w8s2-ws", rows=LONGEST),
                Step(name="sections", config="m128n128w8s2-ws"),
                Step(name="deep", config="m128n128w8s2-ws-deep"),
                Step(name="lazy", config="m128n128w8s2-ws-deep-lazy"),
            ),
        ),
        Ladder(
            headdim=128,
            block="64x64",
            steps=(
                Step(name="portable", config="m64n64w4s3"),
                Step(name="ws", config="m64n64w4s3-ws"),
                Step(name="x2", config="m64n64w4s3-ws-x2"),
                Step(name="lazy", config="m64n64w4s3-ws-lazy-x2"),
                Step(name="two rows", config="m128n64w8s6-ws-lazy"),
                Step(name="pairs", config="m64n128w4s3-ws-joint-lazy-x2", over="lazy"),
            ),
        ),
        Ladder(
            headdim=64,
            block="128x128",
            steps=(
                Step(name="portable", config="m64n64w4s3"),
                Step(name="large tiles", config="m64n128w4s2"),
                Step(name="ws", config="m64n128w4s2-ws"),
                Step(name="x2", config="m64n128w4s2-ws-x2"),
                Step(name="lazy", config="m64n128w4s2-ws-lazy-x2"),
            ),
        ),
    ),
    "flash-quant": (
        Ladder(
            headdim=128,
            steps=(
                Step(name="portable", config="m128n64w8s3"),
                Step(name="large tiles", config="m128n128w8s3"),
                Step(name="ws", config="m128n128w8s4-ws", over="portable"),
                Step(name="beside", config="m128n128w8s4-ws-beside"),
                Step(name="x2", config="m64n128w4s2-ws-x2", over="ws"),
                Step(name="three", config="m192n128w12s4-ws", over="ws"),
            ),
        ),
        Ladder(
            headdim=64,
            steps=(
                Step(name="portable", config="m128n64w8s3"),
                Step(name="large tiles", config="m128n128w8s3"),
                Step(name="ws", config="m128n128w8s4-ws"),
                Step(name="beside", config="m128n128w8s4-ws-beside"),
                Step(name="x2", config="m64n128w4s2-ws-x2", over="ws"),
                Step(name="three", config="m192n128w12s4-ws", over="ws"),
            ),
        ),
    ),
    "flash-sparse-quant": (
        Ladder(
            headdim=128,
            block="128x128",
            steps=(
                Step(name="portable", config="m64n64w4s3"),
                Step(name="large tiles", config="m64n128w4s3"),
                Step(name="ws", config="m128n128w8s4-ws", over="portable"),
                Step(name="beside", config="m128n128w8s4-ws-beside"),
                Step(name="x2", config="m64n128w4s2-ws-x2", over="ws"),
            ),
        ),
        Ladder(
            headdim=128,
            block="64x64",
            steps=(
                Step(name="portable", config="m64n64w4s3"),
                Step(name="ws", config="m64n64w4s4-ws"),
                Step(name="x2", config="m64n64w4s4-ws-x2"),
                Step(name="beside", config="m64n64w4s4-ws-beside-x2"),
            ),
        ),
        Ladder(
            headdim=64,
            block="128x128",
            steps=(
                Step(name="portable", config="m64n64w4s3"),
                Step(name="large tiles", config="m64n128w4s3"),
                Step(name="ws", config="m128n128w8s4-ws"),
                Step(name="beside", config="m128n128w8s4-ws-beside"),
                Step(name="x2", config="m64n128w4s4-ws-x2", over="ws"),
            ),
        ),
    ),
}
"""Steps by kernel.  Each is held against the one before, or against `over` where that one is no part of it."""


def case_of(ladder: Ladder, of: Of, *, seqlen: int, heads: int) -> AttentionCase | SparseCase:
    """The case of the workload that a group measures: one sequence, bf16."""
    shape: dict[str, Any] = {"batch": 1, "seqlen": seqlen, "nheads": heads, "headdim": ladder.headdim}
    if not ladder.block:
        return AttentionCase(**shape, causal=of.causal, dtype="bf16", mode="fwd")
    return SparseCase(
        **shape, causal=of.causal, dtype="bf16", block=ladder.block, pattern=of.pattern, density=of.density
    )


def flops_of(case: AttentionCase | SparseCase) -> int:
    """Useful ones: of a map, those that it keeps."""
    return sparse_work(case).flops if isinstance(case, SparseCase) else dense_work(case).flops


def taken(lists: Any, rows: str) -> Any:
    """Lists whose rows are taken in this order; made they are sorted by sections."""
    if rows == SECTIONS:
        return lists
    by = lists.items[:, 0] if rows == MAP else -lists.items[:, 1]
    return replace(lists, items=lists.items[by.argsort(stable=True)].contiguous())


def opened(kernel: str, step: Step, case: Any, inputs: Any) -> tuple[Callable[[], None], Any]:
    """A step ready to be launched, and the tensor that a launch writes."""
    import torch

    from attnbench.kernels.flash.sparse import api

    if kernel == "flash-quant":
        session = QuantSession(case, inputs, step.config)
        return session.attend, session.results_of_phase[0]
    given, terms = (inputs.q, inputs.k, inputs.v), {"block": case.block_shape, "causal": case.causal}
    if kernel == "flash-sparse-quant":
        call = SparseQuantCall(case, given, step.config)
        call.convert(inputs.block_map)
        call.lists = taken(call.lists, step.rows)
        return call.kernel, call.results[0]
    problem = api.sparse_problem_of(*given, **terms)
    config = api.config_for(step.config, *given, problem)
    lists = taken(api.make_lists(inputs.block_map, *given[:2], **terms, config=config), step.rows)
    out = torch.empty_like(inputs.q)
    lse = torch.empty(case.batch, case.nheads, case.seqlen, device=out.device)
    return lambda: api.launch_sparse(*given, out, lse, lists, problem, config), out


def measure(
    kernel: str, ladder: Ladder, of: Of, *, seqlen: int, heads: int, seconds: float, device: Device
) -> dict[str, Any]:
    """Sample a group; its rows with all samples.

    Raises:
        ValueError: a step's output is not that of the first; the message names it and the distance.
    """
    from attnbench.workloads.attention import inputs as dense_inputs
    from attnbench.workloads.sparse import inputs as sparse_inputs

    case = case_of(ladder, of, seqlen=seqlen, heads=heads)
    make = sparse_inputs.make_inputs if ladder.block else dense_inputs.make_inputs
    inputs = make(case, seed=0, kind="normal", device=str(device))  # type: ignore[operator]
    rows: list[dict[str, Any]] = []
    calls: list[Callable[[], None]] = []
    simplest = None
    for step in ladder.steps:
        call, out = opened(kernel, step, case, inputs)
        call()
        simplest = out.float() if simplest is None else simplest
        distance = float((out.float() - simplest).abs().sum() / simplest.abs().sum())
        if not distance <= FAR[kernel]:
            first, most = ladder.steps[0].config, FAR[kernel]
            raise ValueError(f"{kernel}: config={step.config} is {distance:.3g} off {first}; at most {most:g}")
        rows.append(asdict(step) | {"distance": distance})
        calls.append(call)
    group = sample(
        [Subject(name=str(number), call=call) for number, call in enumerate(calls)],
        device=device,
        plan=Plan(max_seconds=seconds, rel_ci=0.003),
    )
    for row, timing in zip(rows, group.timings, strict=True):
        row |= {"samples_ms": timing.samples_ms, "rounds": timing.rounds, "sm_mhz": timing.sm_mhz}
    shape = {"headdim": ladder.headdim, "block": ladder.block, "seqlen": seqlen, "heads": heads}
    return shape | asdict(of) | {"flops": flops_of(case), "timer": group.timings[0].timer, "rows": rows}


def of_group(group: Mapping[str, Any]) -> Of:
    """What a measured group has of mask and map."""
    return Of(**{name: group[name] for name in Of.__dataclass_fields__})


def gain(group: Mapping[str, Any], index: int) -> tuple[float, float | None, float | None] | None:
    """Speed-up of a step over the one that it is held against, within rounds, with its interval; None of the first."""
    rows = group["rows"]
    if index == 0:
        return None
    over = next((row for row in rows if row["name"] == rows[index]["over"]), rows[index - 1])
    before, own = (dict(zip(one["rounds"], one["samples_ms"], strict=True)) for one in (over, rows[index]))
    found = paired_ratio(before, own)
    return found.ratio, found.ci_low, found.ci_high


def tflops(group: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """Useful rate of a step."""
    return float(group["flops"] / statistics.median(row["samples_ms"]) / 1e9)


def lines_of(group: Mapping[str, Any]) -> list[str]:
    """A group as text."""
    shape = f"{group['seqlen']} rows, {group['heads']} heads of {group['headdim']}, {group['block'] or 'dense'}"
    lines = [f"{shape}, {of_group(group).said}"]
    for index, row in enumerate(group["rows"]):
        found = gain(group, index)
        rate = f"{statistics.median(row['samples_ms']):8.4f} ms {tflops(group, row):6.0f} TFLOP/s"
        lines.append(f"  {row['name']:14} {row['config']:34} {rate}" + (f"  {found[0]:.3f}x" if found else ""))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write after each group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", required=True, choices=list(LADDERS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1.0, help="sampling time of a group, at most")
    parser.add_argument("--seqlen", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=16)
    args = parser.parse_args(arguments)
    device = Device("cuda")
    result: dict[str, Any] = {"environment": to_dict(environment(device)), "seconds": args.seconds, "groups": []}
    for ladder in LADDERS[args.kernel]:
        for of in COLUMNS[args.kernel]:
            terms = {"seqlen": args.seqlen, "heads": args.heads, "seconds": args.seconds, "device": device}
            group = measure(args.kernel, ladder, of, **terms)
            result["groups"].append(group)
            print("\n".join(lines_of(group)), flush=True)
            args.out.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
