"""Our block-sparse attention in 8 bits beside the dense one in 8 bits and the block-sparse one in 16: a group a shape.

A group has `flash-quant` and, for each density, `flash-sparse` and `flash-sparse-quant` on one random map: the whole op,
which quantises, and its kernel alone.  E is the speed-up over dense, op over op and kernel over kernel, times the share
of the dense work that the map keeps: 1 is ideal.  Lists are made before.  All samples go to one JSON file.

    python benchmarks/flash_sparse_quant.py --out benchmarks/results/flash-sparse-quant-h200.json
    python benchmarks/flash_sparse_quant.py --only 16384 --forms m128n128w8s4-ws-beside,m64n128w4s2-ws-beside-x2 --out f.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnbench.backends.registry import resolve
from attnbench.kernels.flash.sparse_quant.config import Shape, SparseQuantConfig, default_config, fault
from attnbench.machine.device import Device
from attnbench.machine.fingerprint import environment
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import sample
from attnbench.measure.subject import Subject
from attnbench.record import to_dict
from attnbench.stats.ratio import paired_ratio
from attnbench.workloads.sparse.case import SparseCase
from attnbench.workloads.sparse.inputs import make_inputs
from attnbench.workloads.sparse.work import density

DENSITIES = (0.1, 0.3, 0.5, 0.7, 1.0)
E_BAR = {32768: {0.3: 0.85, 0.5: 0.85, 0.7: 0.85}}
"Least E of the op, by rows and density."
FASTER_FROM = 8192
"Rows from which the op is to be faster than `flash-sparse` on the same map."


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A group: one shape and its densities."""

    seqlen: int
    headdim: int = 128
    block: str = "128x128"
    causal: bool = False
    heads: int = 16

    def case(self, kept: float) -> SparseCase:
        """The case of the workload whose map this is."""
        return SparseCase(
            batch=1,
            seqlen=self.seqlen,
            nheads=self.heads,
            headdim=self.headdim,
            causal=self.causal,
            dtype="bf16",
            block=self.block,
            pattern="full" if kept == 1 else "random",
            density=kept,
        )

    @property
    def shape(self) -> Shape:
        """Of its configurations."""
        rows, keys = self.case(1).block_shape
        return Shape(dim=self.headdim, block_q=rows, block_k=keys)

    @property
    def default(self) -> str:
        """Name of the default of an H200."""
        return default_config(self.shape).short

    @property
    def flops(self) -> int:
        """Useful ones of the dense op; a density is of them."""
        return 4 * self.heads * self.seqlen**2 * self.headdim // (2 if self.causal else 1)


SWEEPS = (
    Sweep(seqlen=32768),
    Sweep(seqlen=16384),
    Sweep(seqlen=8192),
    Sweep(seqlen=16384, causal=True),
    Sweep(seqlen=16384, block="64x64"),
    Sweep(seqlen=16384, headdim=64),
    Sweep(seqlen=16384, block="128x64"),
    Sweep(seqlen=16384, block="64x128"),
)


def measure(sweep: Sweep, forms: Sequence[str], seconds: float, device: Device) -> dict[str, Any]:
    """Sample a group; its rows with all samples."""
    import torch

    rows: list[dict[str, Any]] = []
    calls: list[Callable[[], Any]] = []

    def add(what: str, config: str, share: float, call: Any) -> None:
        rows.append({"what": what, "config": config, "density": share})
        calls.append(call)

    valid = [one for one in forms if fault(SparseQuantConfig.parse(one), sweep.shape) is None]
    with ExitStack() as stack:

        def opened(name: str, case: Any, inputs: Any) -> Any:
            launch = stack.enter_context(resolve(name, case).session(case, inputs))
            launch.forward()
            return launch

        full = sweep.case(1)
        inputs = make_inputs(full, seed=0, kind="normal", device=str(device))
        dense = opened("flash-quant", full.dense, inputs.dense)
        add("dense op", "", 1.0, dense.forward)
        add("dense kernel", "", 1.0, dense.phases["kernel"])
        for kept in DENSITIES:
            case = sweep.case(kept)
            inputs, share = make_inputs(case, seed=0, kind="normal", device=str(device)), density(case)
            add("sparse", "", share, opened("flash-sparse", case, inputs).forward)
            for short in valid or [sweep.default]:
                launch = opened(f"flash-sparse-quant[{short}]", case, inputs)
                add("op", short, share, launch.forward)
                add("kernel", short, share, launch.phases["kernel"])
        torch.cuda.synchronize()
        group = sample(
            [Subject(name=str(number), call=call) for number, call in enumerate(calls)],
            device=device,
            plan=Plan(max_seconds=seconds, rel_ci=0.003),
        )
    for row, timing in zip(rows, group.timings, strict=True):
        row |= {"samples_ms": timing.samples_ms, "rounds": timing.rounds, "sm_mhz": timing.sm_mhz}
    return asdict(sweep) | {"timer": group.timings[0].timer, "rows": rows}


def speed_up(group: Mapping[str, Any], over: str, row: Mapping[str, Any]) -> float:
    """Of a row over the group's row `over`, on the same map or, if it is dense, on none; within rounds."""
    same = 1.0 if over.startswith("dense") else row["density"]
    base = next(one for one in group["rows"] if (one["what"], one["density"]) == (over, same))
    theirs, own = (dict(zip(one["rounds"], one["samples_ms"], strict=True)) for one in (base, row))
    return paired_ratio(theirs, own).ratio


def sweep_of(group: Mapping[str, Any]) -> Sweep:
    """What a measured group was to be."""
    return Sweep(**{name: group[name] for name in Sweep.__dataclass_fields__})


def e_bar(sweep: Sweep, density: float) -> float | None:
    """Least E of the op; None where none is wanted."""
    return E_BAR.get(sweep.seqlen, {}).get(round(density, 1)) if sweep.block == "128x128" else None


def lines_of(group: Mapping[str, Any]) -> list[str]:
    """A group as text: what each row costs, E of op and kernel, and what the bars say."""
    sweep = sweep_of(group)
    mask = "causal" if group["causal"] else "full"
    lines = [f"{group['seqlen']} rows, dim {group['headdim']}, {group['block']}, {mask}"]
    for row in group["rows"]:
        ms = statistics.median(row["samples_ms"])
        line = f"  {row['what']:13}{row['density']:5.2f} {row['config']:26} {ms:8.4f} ms"
        line += f" {sweep.flops * row['density'] / ms / 1e9:6.0f} TFLOP/s"
        if row["what"] in ("op", "kernel"):
            found = speed_up(group, f"dense {row['what']}", row) * row["density"]
            line += f"  E {found:.3f}"
            least = e_bar(sweep, row["density"])
            if row["what"] == "op" and least is not None:
                line += f" bar {least:.2f}: {'reached' if found >= least else 'BELOW'}"
        if row["what"] == "op":
            ratio = speed_up(group, "sparse", row)
            line += f"  {ratio:.3f} of flash-sparse"
            if group["seqlen"] >= FASTER_FROM:
                line += f", bar 1: {'reached' if ratio > 1 else 'BELOW'}"
        lines.append(line)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write after each group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="comma list of rows")
    parser.add_argument("--blocks", default="", help="comma list of blocks")
    parser.add_argument("--forms", default="", help="comma list of configurations; those a shape has not are left out")
    parser.add_argument("--seconds", type=float, default=3.0, help="sampling time of a group, at most")
    args = parser.parse_args(arguments)
    rows, blocks, forms = ([one for one in text.split(",") if one] for text in (args.only, args.blocks, args.forms))
    device = Device("cuda")
    result: dict[str, Any] = {"environment": to_dict(environment(device)), "seconds": args.seconds, "groups": []}
    for sweep in SWEEPS:
        if (not rows or str(sweep.seqlen) in rows) and (not blocks or sweep.block in blocks):
            group = measure(sweep, forms, args.seconds, device)
            result["groups"].append(group)
            print("\n".join(lines_of(group)), flush=True)
            args.out.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
