"""Compile what a benchmark will launch beforehand, in many processes, so that the benchmark measures and does not wait.

Each case of a suite is called once with a batch of one, in every mode asked for, by every selector asked for; what
Triton compiles stays in its cache, and nothing that depends on the batch alone is compiled anew.  A cut that does not
fit the card is a line, not an error.

    python benchmarks/compile.py --suite hstu-dense --backends hstu-triton --modes fwd,bwd --cuts
    python benchmarks/compile.py --suite hstu-bsa-long --backends hstu-triton,hstu-bsa-triton --modes fwd,fwd-bwd
    python benchmarks/compile.py --suite flash --backends 'flash-triton,flash-triton[m128n128w8s2-tma-pp]' --headdim 128
    python benchmarks/compile.py --suite hstu-bsa --backends hstu-eager --device cpu --jobs 1
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from attnbench.backends.registry import all_backends, resolve
from attnbench.errors import AttnbenchError
from attnbench.suites.load import load_suite
from attnbench.workloads.base import load_workload

Task = tuple[str, tuple[dict[str, Any], ...], str, str]
"""A selector, its cases, the device, the workload: one process compiles what they share once."""
KIND = ("attn_dim", "linear_dim", "headdim", "headdim_v", "nheads", "dtype")
"Axes, of whichever workload, that cases of one process have in common."


def tasks(
    suite: str,
    names: Iterable[str],
    modes: Sequence[str],
    device: str,
    *,
    cuts: bool,
    chosen: Mapping[str, Sequence[int]],
) -> tuple[list[Task], list[Task]]:
    """What to call: first the defaults, then the cuts, which share kernels with them.

    Args:
        suite: with listed cases.
        names: of backends; without cuts, selectors too.
        modes: of the cases.
        device: ``cuda`` or ``cpu``.
        cuts: every configuration too.
        chosen: values of axes; empty is all.
    """
    found: tuple[list[Task], list[Task]] = ([], [])
    kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    loaded = load_suite(suite, device)
    workload = load_workload(loaded.workload)
    for one in loaded.cases:
        values = dict(one.values) | {"batch": 1}
        if any(given and values.get(axis) not in given for axis, given in chosen.items()):
            continue
        kinds.setdefault(tuple(values.get(axis) for axis in KIND), []).append(values)
    for cases in kinds.values():
        for mode in modes:
            in_mode = tuple(values | {"mode": mode} for values in cases)
            for name in names:
                found[0].append((name, in_mode, device, workload.name))
                case = workload.case(in_mode[0])
                found[1].extend(
                    (f"{name}[{config.short}]", in_mode, device, workload.name)
                    for config in (all_backends()[name].configs(case) if cuts else ())
                )
    return found


def call(task: Task) -> list[str]:
    """Call each case of a task once; a line for each that did not work."""
    import torch

    selector, cases, device, name = task
    workload, wrong = load_workload(name), []
    for values in cases:
        case = workload.case(values)
        try:
            inputs = workload.inputs(case, seed=1, kind="normal", device=device)
            with resolve(selector, case).session(case, inputs) as it:
                it.forward()
                if it.backward is not None:
                    it.backward()
                if device == "cuda":
                    torch.cuda.synchronize()
        except Exception as error:  # one cut that does not fit must not end the others
            wrong.append(f"{selector} {case.id}: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, and say how long it took and what did not work; 1 where a default did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", required=True)
    parser.add_argument("--backends", required=True, help="comma list of names")
    parser.add_argument("--modes", default="fwd,bwd")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--attn-dim", default="", help="comma list out of the suite's")
    parser.add_argument("--headdim", default="", help="comma list out of the suite's")
    parser.add_argument("--seqlen", default="", help="comma list out of the suite's")
    parser.add_argument("--cuts", action="store_true", help="every configuration too")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    args = parser.parse_args(arguments)
    chosen = {
        axis: [int(value) for value in given.split(",") if value]
        for axis, given in (("attn_dim", args.attn_dim), ("headdim", args.headdim), ("seqlen", args.seqlen))
    }
    started, failed = time.monotonic(), False
    try:
        rounds = tasks(
            args.suite, args.backends.split(","), args.modes.split(","), args.device, cuts=args.cuts, chosen=chosen
        )
    except AttnbenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for number, some in enumerate(rounds):
            wrong = [line for lines in pool.map(call, some) for line in lines]
            failed |= bool(wrong) and not number
            print(
                "\n".join(
                    [f"{len(some)} {'cuts' if number else 'defaults'} in {time.monotonic() - started:.0f} s", *wrong]
                ),
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
