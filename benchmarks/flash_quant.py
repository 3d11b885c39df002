"""Our attention in 8 bits beside the fastest kernels of 16 bits and the 8-bit ones of others: interleaved, a group a shape.

A group has the whole op and its phases apart, for each configuration of the kernel, and the peers that are installed.
`smooth` and `quantise` are the op's first launch cut in two; what that takes of the op is op less kernel.
FlashAttention 3 in e4m3 is its kernel alone, on tensors converted before, without descales; it adds up in one level.  A copy
in memory is the yardstick of the preparation.  All samples go to one JSON file.

    python benchmarks/flash_quant.py --out benchmarks/results/flash-quant-h200.json
    python benchmarks/flash_quant.py --only 4096 --forms m128n64w8s3,m128n128w8s3 --out /tmp/forms.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnbench.backends.base import Machine
from attnbench.backends.registry import resolve
from attnbench.errors import Unavailable, Unsupported
from attnbench.kernels.flash.quant.config import QuantConfig, Shape, default_config, fault
from attnbench.machine.device import Device
from attnbench.machine.fingerprint import environment
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import sample
from attnbench.measure.subject import Subject
from attnbench.record import to_dict
from attnbench.stats.ratio import paired_ratio
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.inputs import make_inputs
from attnbench.workloads.attention.work import work

PEERS = ("flash-triton", "sdpa-cudnn", "fa3-fwd", "sage1")
SIXTEEN = PEERS[:3]
"Those of 16 bits."
FP8 = "fa3-fwd-fp8"
COPY = "copy"
COPY_BYTES = 2**30
"Read and written by a copy, together: many times the L2."
COPY_BAR = 0.7
"Of the copy's rate, by the preparation."
KERNEL_BAR = 0.9
"Of FlashAttention 3 in e4m3, kernel against kernel."
OP_BARS = {128: {4096: 1.0, 16384: 1.1, 32768: 1.15}, 64: {16384: 1.0, 32768: 1.0}}
"Of the fastest of 16 bits, by dim and rows."


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A group: one shape."""

    seqlen: int
    headdim: int
    causal: bool
    heads: int = 16

    @property
    def case(self) -> AttentionCase:
        """The case of the workload: 16,384 rows in all, or one sequence."""
        return AttentionCase(
            batch=max(1, 16384 // self.seqlen),
            seqlen=self.seqlen,
            nheads=self.heads,
            headdim=self.headdim,
            causal=self.causal,
            dtype="bf16",
            mode="fwd",
        )

    @property
    def flops(self) -> int:
        """Useful ones."""
        return work(self.case).flops

    @property
    def default(self) -> str:
        """Name of the tuned default of an H200."""
        return default_config(Shape(dim=self.headdim)).short


SWEEPS = tuple(
    Sweep(seqlen=seqlen, headdim=dim, causal=causal)
    for seqlen in (4096, 16384, 32768, 1024)
    for dim in (128, 64)
    for causal in (False, True)
)


def e4m3_of(inputs: Any, case: AttentionCase) -> Callable[[], Any]:
    """FlashAttention 3's kernel on tensors of e4m3."""
    import torch

    attend = importlib.import_module("fa3_fwd_interface").flash_attn_func
    q, k, v = (x.to(torch.float8_e4m3fn) for x in (inputs.q, inputs.k, inputs.v))
    return lambda: attend(q, k, v, softmax_scale=case.scale, causal=case.causal)


def measure(sweep: Sweep, forms: Sequence[str], peers: Sequence[str], seconds: float, device: Device) -> dict[str, Any]:
    """Sample a group; its rows with all samples."""
    import torch

    case = sweep.case
    inputs = make_inputs(case, seed=0, kind="normal", device=str(device))
    rows: list[dict[str, Any]] = []
    calls: list[Callable[[], Any]] = []
    with ExitStack() as stack:
        valid = [one for one in forms if fault(QuantConfig.parse(one), Shape(dim=sweep.headdim)) is None]
        for number, short in enumerate(valid or [sweep.default]):
            launch = stack.enter_context(resolve(f"flash-quant[{short}]", case).session(case, inputs))
            for what, call in {"op": launch.forward, **launch.phases}.items():
                if callable(call) and (number == 0 or what in ("op", "kernel")):
                    rows.append({"what": what, "config": short})
                    calls.append(call)
        for name in peers:
            backend = resolve(name, case)
            try:
                backend.probe()
                backend.check(case, Machine("cuda", torch.cuda.get_device_capability()))
                calls.append(stack.enter_context(backend.session(case, inputs)).forward)
            except (Unavailable, Unsupported, ImportError) as why:
                print(why, file=sys.stderr)
                continue
            rows.append({"what": name, "config": ""})
        try:
            calls.append(e4m3_of(inputs, case))
            rows.append({"what": FP8, "config": ""})
        except ImportError as why:
            print(why, file=sys.stderr)
        source, target = torch.empty(2, COPY_BYTES // 2, dtype=torch.uint8, device=str(device))
        rows.append({"what": COPY, "config": ""})
        calls.append(lambda: target.copy_(source))
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


def faster(group: Mapping[str, Any], row: Mapping[str, Any], names: Sequence[str]) -> tuple[float, str] | None:
    """Speed-up of a row over the fastest of these within rounds, and which; None where none was measured."""
    peers = [one for one in group["rows"] if one["what"] in names]
    if not peers:
        return None
    best = min(peers, key=lambda one: statistics.median(one["samples_ms"]))
    theirs, own = (dict(zip(one["rounds"], one["samples_ms"], strict=True)) for one in (best, row))
    return paired_ratio(theirs, own).ratio, best["what"]


def sweep_of(group: Mapping[str, Any]) -> Sweep:
    """What a measured group was to be."""
    return Sweep(**{name: group[name] for name in Sweep.__dataclass_fields__})


def preparation_ms(group: Mapping[str, Any], config: str) -> float | None:
    """What the preparation takes of the op: op less kernel, within rounds; None if half of them differ by more than it."""
    op, kernel = (
        next(dict(zip(row["rounds"], row["samples_ms"], strict=True)) for row in group["rows"] if key == _key(row))
        for key in (("op", config), ("kernel", config))
    )
    low, middle, high = statistics.quantiles([op[turn] - kernel[turn] for turn in op.keys() & kernel.keys()], n=4)
    return middle if high - low < middle else None


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["what"], row["config"]


def prepared_bytes(sweep: Sweep) -> int:
    """What the preparation moves at least: each number once, read in 16 bits and written in 8."""
    return 9 * sweep.case.batch * sweep.seqlen * sweep.heads * sweep.headdim


def preparation_rate(group: Mapping[str, Any], config: str) -> tuple[float | None, float | None]:
    """Bytes a second of the preparation, and its share of the copy's; None where it, or a copy, was not measured."""
    ms = preparation_ms(group, config)
    own = prepared_bytes(sweep_of(group)) / ms * 1e3 if ms else None
    copies = [statistics.median(row["samples_ms"]) for row in group["rows"] if row["what"] == COPY]
    return own, own / (COPY_BYTES / copies[0] * 1e3) if own and copies else None


def lines_of(group: Mapping[str, Any]) -> list[str]:
    """A group as text."""
    sweep = sweep_of(group)
    flops = sweep.flops
    lines = [f"{sweep.seqlen} rows, dim {sweep.headdim}, {'causal' if sweep.causal else 'full'}"]
    for row in group["rows"]:
        ms = statistics.median(row["samples_ms"])
        line = f"  {row['what']:13} {row['config']:28} {ms:8.4f} ms"
        if row["what"] not in ("smooth", "quantise", COPY):
            line += f" {flops / ms / 1e9:6.0f} TFLOP/s"
        names, least = (
            ((FP8,), KERNEL_BAR)
            if row["what"] == "kernel"
            else (SIXTEEN, OP_BARS[sweep.headdim].get(sweep.seqlen))
            if row["what"] == "op"
            else ((), None)
        )
        if names and (found := faster(group, row, names)):
            line += f"  {found[0]:.3f} of {found[1]}"
            if least is not None:
                line += f", bar {least:.2f}: {'reached' if found[0] >= least else 'BELOW'}"
            share = preparation_rate(group, row["config"])[1] if row["what"] == "op" else None
            if share is not None:
                line += f"; preparation {share:.2f} of the copy rate"
        lines.append(line)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write after each group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="comma list of rows")
    parser.add_argument("--dims", default="", help="comma list of dims")
    parser.add_argument(
        "--forms", default="", help="comma list of configurations; those that a shape has not are left out"
    )
    parser.add_argument("--peers", default=",".join(PEERS), help="comma list of backends")
    parser.add_argument("--seconds", type=float, default=2.0, help="sampling time of a group, at most")
    args = parser.parse_args(arguments)
    wanted = [{int(one) for one in text.split(",") if one} for text in (args.only, args.dims)]
    forms = [one for one in args.forms.split(",") if one]
    device = Device("cuda")
    result: dict[str, Any] = {"environment": to_dict(environment(device)), "seconds": args.seconds, "groups": []}
    for sweep in SWEEPS:
        if all(not some or value in some for some, value in zip(wanted, (sweep.seqlen, sweep.headdim), strict=True)):
            group = measure(sweep, forms, [one for one in args.peers.split(",") if one], args.seconds, device)
            result["groups"].append(group)
            print("\n".join(lines_of(group)), flush=True)
            args.out.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
