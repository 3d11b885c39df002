"""Where the host time of a call goes, on a machine without a card: calls whose kernels are not launched.

Public functions take CPU tensors and treat them as tensors of an H200; the launcher of the tests records what Triton, or
its launcher in C, would get.  So a time has the Python code, PyTorch's allocations and its autograd engine, but neither
Triton nor the driver, nor the thread in which PyTorch runs the backward of CUDA tensors.  Beside our functions:

    empty-…       the results of flash attention and its gradients are allocated, nothing else (`call_cost.Empty`)
    view-…        one function of PyTorch in C++, which makes a view

Calls take turns in random order.  A line says the median of all, and how many functions in Python one calls; of a shape
never seen, of which nothing is compiled anew, only the latter.

    python benchmarks/call_cost_cpu.py --out benchmarks/results/call-cost-cpu.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from call_cost import Empty

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.kernels.launches import on_no_card

from attnbench.kernels import flash_attention, hstu_attention, hstu_bsa_attention
from attnbench.kernels.shared.card import Card, stood_in_for
from attnbench.machine.devices import resolve
from attnbench.machine.fingerprint import environment
from attnbench.record import to_dict

CALLS = 20
"A turn has so many."
Call = Callable[[], Any]


def drawn(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def warm() -> Iterator[tuple[str, Call]]:
    """Calls of shapes that were seen, by name."""
    q, k, v = (drawn(1, 64, 4, 64) for _ in range(3))
    grads, dout = [x.clone().requires_grad_() for x in (q, k, v)], drawn(1, 64, 4, 64)

    def gradients(out: torch.Tensor) -> Any:
        return torch.autograd.grad(out, grads, dout)

    yield "flash", lambda: flash_attention(q, k, v, causal=True)
    yield "flash-grad-fwd", lambda: flash_attention(*grads, causal=True)
    yield "flash-fwd-bwd", lambda: gradients(flash_attention(*grads, causal=True)[0])
    yield "empty-fwd-bwd", lambda: gradients(Empty.apply(*grads)[0])
    yield "view-fwd-bwd", lambda: torch.autograd.grad(grads[0].view_as(dout), grads[0], dout)
    rows, ends, drows = [drawn(64, 4, 64) for _ in range(3)], torch.tensor([0, 30, 64]), drawn(64, 4, 64)
    given = [x.clone().requires_grad_() for x in rows]
    yield "hstu", lambda: hstu_attention(*rows, ends, 34)
    yield "hstu-grad-fwd", lambda: hstu_attention(*given, ends, 34)
    yield "hstu-fwd-bwd", lambda: torch.autograd.grad(hstu_attention(*given, ends, 34), given, drows)


def new_shapes(length: int) -> Iterator[tuple[str, Call]]:
    """Calls of a shape that was not seen, of which nothing is compiled anew."""
    q, rows, ends = drawn(1, length, 16, 128), drawn(length, 4, 128), torch.tensor([0, length], dtype=torch.int32)
    yield "flash", lambda: flash_attention(q, q, q, causal=True)
    yield "hstu", lambda: hstu_attention(rows, rows, rows, ends, length)
    packed = {"cu_seqlens_q": ends, "max_seqlen_q": length, "causal": True}
    yield "flash-packed", lambda: flash_attention(rows, rows, rows, **packed)
    gates = drawn(length, 4, 2)
    yield "hstu-bsa", lambda: hstu_bsa_attention(rows, rows, rows, ends, length, gates=gates)
    two, grads = torch.cat([q, q]), rows.clone().requires_grad_()
    grad = two.clone().requires_grad_()
    yield "flash-fwd-bwd", lambda: torch.autograd.grad(flash_attention(grad, grad, grad, causal=True)[0], grad, two)
    yield (
        "hstu-fwd-bwd",
        lambda: torch.autograd.grad(hstu_attention(grads, grads, grads, ends, 2 * length), grads, rows),
    )
    yield (
        "hstu-bsa-fwd-bwd",
        lambda: torch.autograd.grad(
            hstu_bsa_attention(grads, grads, grads, ends, 2 * length, gates=gates)[0], grads, rows
        ),
    )


def python_calls(call: Call) -> int:
    """Functions in Python that a call calls, without those of the launcher that records."""
    found = 0

    def count(frame: Any, event: str, _argument: Any) -> None:
        nonlocal found
        found += event == "call" and not frame.f_code.co_filename.endswith(("launches.py", Path(__file__).name))

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def timed(call: Call) -> float:
    """Time of a call, µs."""
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e6


def summary(times: list[float], calls: int) -> dict[str, float]:
    tenths = statistics.quantiles(times, n=10)
    return {"median_us": statistics.median(times), "low_us": tenths[0], "high_us": tenths[-1], "python_calls": calls}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with on_no_card() as recorder, stood_in_for(Card((9, 0), 132)):
        recorder.hold = lambda made: made  # addresses may come again, as on a card
        given = dict(warm())
        times: dict[str, list[float]] = {name: [] for name in given}
        for call in given.values():
            for _ in range(CALLS):
                call()
        order = random.Random(0)
        for _ in range(args.rounds):
            recorder.launched.clear()
            for name in order.sample(list(given), len(given)):
                times[name] += [timed(given[name]) for _ in range(CALLS)]
        result = {
            "environment": to_dict(environment(resolve("cpu"))),
            "calls": {
                # The least of several: a tensor at an address that was not seen has its tensor map made.
                name: summary(found, min(python_calls(given[name]) for _ in range(CALLS)))
                for name, found in times.items()
            },
        }
        # Their time would be that of the recorder, which looks at every argument of a launch through Triton.
        fresh = [{name: python_calls(call) for name, call in new_shapes(length)} for length in range(1100, 1109)]
        # The first compiles, and another may need a launch of its own, such as for the first even number of rows.
        result["new_shapes"] = {
            name: {"python_calls": int(statistics.median(found[name] for found in fresh))} for name in fresh[0]
        }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, found in result["calls"].items():
        spread = f"{found['median_us']:8.1f} us, {found['low_us']:.1f} to {found['high_us']:.1f}"
        print(f"{name:22}{spread:32}{found['python_calls']:6} calls")
    for name, found in result["new_shapes"].items():
        print(f"{name + ', a new shape':54}{found['python_calls']:6} calls")


if __name__ == "__main__":
    main()
