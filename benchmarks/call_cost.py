"""What a call costs the host: time of a warm eager call, queued behind other work, ours beside FlashAttention 3 and SDPA.

Functions take turns in random order in one process.  Before each turn the card is given a spin to wait for, and a turn
whose calls outlast it is not counted: so no call waits for the card.  A line says the median of all calls, the tenth and
the ninetieth percentile.  Then shapes that were never seen, of which nothing is compiled anew, and numbers of rows that
were never seen under bounds that were.

    python benchmarks/call_cost.py --out benchmarks/results/call-cost-h200.json
    python benchmarks/call_cost.py --only flash,sdpa --rounds 5 --out /tmp/call-cost.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from call_cost_rows import rows
from torch import Tensor

from attnbench.kernels import (
    flash_attention,
    flash_quant_attention,
    flash_sparse_attention,
    flash_sparse_quant_attention,
    hstu_attention,
    hstu_bsa_attention,
)
from attnbench.kernels.hstu.paged.api import Step, hstu_paged_append, hstu_paged_attention
from attnbench.machine.devices import resolve
from attnbench.machine.fingerprint import environment
from attnbench.record import to_dict

CALLS = 10
"A turn has so many."
SPIN_CYCLES = 60_000_000
"30 ms of an H200."
Call = Callable[[], Any]


def drawn(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def calls() -> Iterator[tuple[str, Call]]:
    """Every function by name, on tensors of its own."""
    q, k, v = (drawn(2, 1024, 16, 128) for _ in range(3))
    yield "flash", lambda: flash_attention(q, k, v, causal=True)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    yield "sdpa", lambda: torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    packed, offsets = [drawn(2048, 16, 128) for _ in range(3)], ints(0, 1000, 2048)
    yield "flash-packed", lambda: flash_attention(*packed, cu_seqlens_q=offsets, max_seqlen_q=1048, causal=True)
    yield (
        "flash-quant-packed",
        lambda: flash_quant_attention(*packed, cu_seqlens_q=offsets, max_seqlen_q=1048, causal=True),
    )
    blocks = torch.rand(2, 16, 8, 8, device="cuda") < 0.5
    yield "flash-sparse", lambda: flash_sparse_attention(q, k, v, blocks, block=(128, 128))
    yield "flash-sparse-quant", lambda: flash_sparse_quant_attention(q, k, v, blocks, block=(128, 128))
    if importlib.util.find_spec("fa3_fwd_interface"):
        import fa3_fwd_interface as fa3

        yield "fa3-fwd", lambda: fa3.flash_attn_func(q, k, v, causal=True)
        yield (
            "fa3-fwd-packed",
            lambda: fa3.flash_attn_varlen_func(
                *packed, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=1048, max_seqlen_k=1048, causal=True
            ),
        )
    rows, ends = [drawn(2048, 4, 128) for _ in range(3)], ints(0, 1000, 2048)
    yield "hstu", lambda: hstu_attention(*rows, ends, 1048)
    gates = drawn(2048, 4, 2)
    yield "hstu-bsa", lambda: hstu_bsa_attention(*rows, ends, 1048, gates=gates)
    table = {"offsets": ends, "cached": ints(1024, 1000), "indptr": ints(0, 32, 64), "indices": ints(*range(64))}
    step = Step(**table, num_targets=ints(512, 512), max_new=1048, max_cached=1024)
    pool = drawn(64, 2, 64, 4, 128)
    yield "hstu-paged", lambda: hstu_paged_attention(*rows, pool, step, scaling_seqlen=2048)
    yield "hstu-paged-append", lambda: hstu_paged_append(rows[1], rows[2], pool, step)
    yield from calls_with_gradients()


class Empty(torch.autograd.Function):
    """What a differentiable call costs in PyTorch whatever it computes: the results of flash attention, no launch."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        batch, rows, heads, _ = q.shape
        out, lse = torch.empty_like(q), q.new_empty((batch, heads, rows), dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(torch.empty_like, ctx.saved_tensors[:3]))


def in_one_thread(call: Call) -> Call:
    """The backward runs in the calling thread, where PyTorch has one of its own for each card."""

    def run() -> None:
        with torch.autograd.set_multithreading_enabled(False):
            call()

    return run


def calls_with_gradients() -> Iterator[tuple[str, Call]]:
    """Forward and backward, and the forward alone where it is differentiable."""
    q, k, v = (drawn(2, 1024, 16, 128, grad=True) for _ in range(3))
    dout = drawn(2, 1024, 16, 128)

    def gradients_of(out: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, (q, k, v), dout)

    yield "flash-grad-fwd", lambda: flash_attention(q, k, v, causal=True)
    yield "flash-fwd-bwd", lambda: gradients_of(flash_attention(q, k, v, causal=True)[0])
    heads, dheads = [x.transpose(1, 2) for x in (q, k, v)], dout.transpose(1, 2)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    yield "sdpa-fwd-bwd", lambda: torch.autograd.grad(sdpa(*heads, is_causal=True), (q, k, v), dheads)
    yield "empty-fwd-bwd", lambda: gradients_of(Empty.apply(q, k, v)[0])
    yield "empty-fwd-bwd-one-thread", in_one_thread(lambda: gradients_of(Empty.apply(q, k, v)[0]))
    yield "flash-fwd-bwd-one-thread", in_one_thread(lambda: gradients_of(flash_attention(q, k, v, causal=True)[0]))
    rows, ends = [drawn(2048, 4, 128, grad=True) for _ in range(3)], ints(0, 1000, 2048)
    drows, gates = drawn(2048, 4, 128), drawn(2048, 4, 2)
    yield "hstu-fwd-bwd", lambda: torch.autograd.grad(hstu_attention(*rows, ends, 1048), rows, drows)
    yield (
        "hstu-bsa-fwd-bwd",
        lambda: torch.autograd.grad(hstu_bsa_attention(*rows, ends, 1048, gates=gates)[0], rows, drows),
    )


def turn(call: Call) -> list[float]:
    """Host time of each call of a turn, µs; none where the card had nothing left to do."""
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(SPIN_CYCLES)
    busy.record()
    found = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        call()
        found.append((time.perf_counter() - begun) * 1e6)
    return [] if busy.query() else found


def measured(given: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Host times of all functions, in turn."""
    for call in given.values():
        for _ in range(3):  # compile, keep, and once more
            call()
    found: dict[str, list[float]] = {name: [] for name in given}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(given), len(given)):
            found[name] += turn(given[name])
    return found


def new_shapes(count: int) -> dict[str, list[float]]:
    """Host time of the first call of shapes never seen, of which nothing is compiled anew."""
    return first_calls(fresh_calls, range(1100, 1100 + count))


def fresh_calls(length: int) -> Iterator[tuple[str, Call]]:
    """Calls on one sequence of so many rows, which is the bound of the packed ones."""
    q, rows, ends = drawn(1, length, 16, 128), drawn(length, 4, 128), ints(0, length)
    yield "flash", lambda: flash_attention(q, q, q, causal=True)
    yield "hstu", lambda: hstu_attention(rows, rows, rows, ends, length)
    yield "flash-packed", lambda: flash_attention(rows, rows, rows, cu_seqlens_q=ends, max_seqlen_q=length, causal=True)
    gates = drawn(length, 4, 2)
    yield "hstu-bsa", lambda: hstu_bsa_attention(rows, rows, rows, ends, length, gates=gates)
    two, grads = torch.cat([q, q]), rows.clone().requires_grad_()
    grad = two.clone().requires_grad_()
    yield "flash-fwd-bwd", lambda: torch.autograd.grad(flash_attention(grad, grad, grad, causal=True)[0], grad, two)
    bound = 2 * length  # never that of a forward alone
    yield "hstu-fwd-bwd", lambda: torch.autograd.grad(hstu_attention(grads, grads, grads, ends, bound), grads, rows)
    yield (
        "hstu-bsa-fwd-bwd",
        lambda: torch.autograd.grad(hstu_bsa_attention(grads, grads, grads, ends, bound, gates=gates)[0], grads, rows),
    )


def jagged_calls(length: int, pool: Tensor, caches: list[Tensor]) -> Iterator[tuple[str, Call]]:
    """Calls on two sequences of so many rows in all, or on so many rows of dense caches.

    Packed softmax attention has their length as its bound.
    """
    rows, drows, ends = [drawn(length, 4, 128) for _ in range(3)], drawn(length, 4, 128), ints(0, 800, length)
    yield "hstu", lambda: hstu_attention(*rows, ends, 2048)
    table = {"offsets": ends, "cached": ints(1024, 1000), "indptr": ints(0, 32, 64), "indices": ints(*range(64))}
    step = Step(**table, num_targets=ints(512, 512), max_new=2048, max_cached=1024)
    yield "hstu-paged", lambda: hstu_paged_attention(*rows, pool, step, scaling_seqlen=2048)
    gates = drawn(length, 4, 2)
    yield "hstu-bsa", lambda: hstu_bsa_attention(*rows, ends, 2048, gates=gates)
    packed = {"cu_seqlens_q": ends, "max_seqlen_q": length - 800, "causal": True}
    yield "flash-packed", lambda: flash_attention(*rows, **packed)
    yield "flash-quant-packed", lambda: flash_quant_attention(*rows, **packed)
    q, (keys, values) = drawn(2, 1, 16, 128), caches
    yield "flash-cache", lambda: flash_attention(q, keys[:, :length], values[:, :length], causal=True)
    given = [x.clone().requires_grad_() for x in rows]
    yield "hstu-fwd-bwd", lambda: torch.autograd.grad(hstu_attention(*given, ends, 2048), given, drows)
    yield "flash-packed-fwd-bwd", lambda: torch.autograd.grad(flash_attention(*given, **packed)[0], given, drows)
    yield (
        "hstu-bsa-fwd-bwd",
        lambda: torch.autograd.grad(hstu_bsa_attention(*given, ends, 2048, gates=gates)[0], given, drows),
    )


def new_rows(count: int) -> dict[str, list[float]]:
    """Host time of calls whose sequences have another number of rows each time."""
    pool, caches = drawn(64, 2, 64, 4, 128), [drawn(2, 1600 + count, 4, 128) for _ in range(2)]
    return first_calls(lambda length: jagged_calls(length, pool, caches), range(1600, 1600 + count))


def first_calls(
    calls_of: Callable[[int], Iterator[tuple[str, Call]]], lengths: Iterable[int]
) -> dict[str, list[float]]:
    """Host time of a single call of each length, µs, without the first lengths, which may compile."""
    found: dict[str, list[float]] = {}
    for length in lengths:
        for name, call in calls_of(length):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            call()
            found.setdefault(name, []).append((time.perf_counter() - begun) * 1e6)
    return {name: times[len(times) // 4 :] for name, times in found.items()}


def spread(times: list[float]) -> dict[str, float]:
    """Median, and the tenth and ninetieth percentile."""
    if len(times) < 2:
        return {}
    tenths = statistics.quantiles(times, n=10)
    return {"median_us": statistics.median(times), "low_us": tenths[0], "high_us": tenths[-1]}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="names of functions, commas between")
    parser.add_argument("--shapes", type=int, default=80, help="how many shapes never seen")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    only = set(filter(None, args.only.split(",")))
    given = {name: call for name, call in calls() if not only or name in only}
    times = measured(given, args.rounds)
    fresh, other = (new_shapes(args.shapes), new_rows(args.shapes)) if args.shapes else ({}, {})
    result = {
        "environment": to_dict(environment(resolve("cuda"))),
        "rounds": args.rounds,
        "calls": {name: spread(found) | {"times_us": found} for name, found in times.items()},
        "new_shapes": {name: spread(found) | {"times_us": found} for name, found in fresh.items()},
        "new_rows": {name: spread(found) | {"times_us": found} for name, found in other.items()},
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for line in rows(result, result):
        print("  ".join(f"{cell:18}" for cell in line))


if __name__ == "__main__":
    main()
