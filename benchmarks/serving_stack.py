"""The layers of DLRMv3's HSTU by themselves: GPU time of one pass of five layers, as a CUDA graph.

The shape is that of meta-recsys/generative-recommenders, issue 530: 32 users, 1,024 items of history on average, 2,048
candidates each, 5 layers, hidden 512, 4 heads of 128 dims, bf16; there Meta's Triton takes 9.30 ms on an H100.  Histories
are drawn from 512 to 1,536 items by seed.  No embedding and no towers, as there.

    python benchmarks/serving_stack.py --out benchmarks/results/serving-stack-h200.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import attnbench
from attnbench.machine.devices import resolve
from attnbench.machine.fingerprint import environment
from attnbench.models.hstu_ranking.config import config_of
from attnbench.record import to_dict
from attnbench.workloads.hstu_serving.work import layer_row_flops, pairs

BATCH, CANDIDATES, SHORTEST, LONGEST = 32, 2048, 512, 1536
PUBLISHED_MS, BAR_MS = 9.30, 7.0


def lengths() -> list[int]:
    """Items of each history, exactly 1,024 on average."""
    half = np.random.default_rng(0).integers(SHORTEST, LONGEST + 1, BATCH // 2)
    return [int(one) for one in (*half, *(SHORTEST + LONGEST - half))]


def flops(histories: list[int]) -> int:
    """Useful work of all layers."""
    config = config_of("dlrm-v3")
    seen = sum(pairs(0, one, CANDIDATES) for one in histories)
    rows = sum(histories) + CANDIDATES * BATCH
    return config.layers * (rows * layer_row_flops(config) + 4 * config.heads * config.dim * seen)


def measured(max_seconds: float) -> dict[str, Any]:
    """Time of a replay, and its samples."""
    import torch

    from attnbench.models.hstu_ranking.attention import Paged, Sequences
    from attnbench.models.hstu_ranking.graphs import captured
    from attnbench.models.hstu_ranking.layers import Layer
    from attnbench.models.hstu_ranking.operations import operations_of
    from attnbench.models.paged_cache import CacheStep
    from attnbench.models.paged_cache.tables import make_table

    config, histories, device = config_of("dlrm-v3"), lengths(), torch.device("cuda")
    drawn = torch.Generator(device).manual_seed(0)
    layers = [Layer(config).to(device, torch.bfloat16) for _ in range(config.layers)]
    for weight in (weight for layer in layers for weight in layer.parameters()):
        weight.requires_grad_(False)
        weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=drawn)
    step = CacheStep(list(range(BATCH)), [0] * BATCH, histories, [CANDIDATES] * BATCH, [[] for _ in histories])
    given = (step.cached, step.new, step.targets, step.pages)
    table = make_table(step, device)
    attention = Paged(Sequences(table, *given, 64, config.dim**-0.5, config.scaling_seqlen))
    rows = sum(histories) + CANDIDATES * BATCH
    first = torch.randn(rows, config.hidden, generator=drawn, device=device).to(torch.bfloat16)
    does = operations_of(device, torch.bfloat16)

    @torch.no_grad()
    def run() -> torch.Tensor:
        x = first.clone()
        for layer in layers:
            u, q, k, v = layer.project(x, does)
            x = layer.output(x, u, attention.attend(None, q, k, v), does, table.offsets[-1:])
        return x

    replay = captured(run)
    if not replay().isfinite().all():
        raise RuntimeError("the output is not finite")
    timing = attnbench.bench(replay, timer="events", max_seconds=max_seconds)
    work, ms = flops(histories), timing.median_ms
    return {
        "environment": to_dict(environment(resolve("cuda"))),
        "histories": histories,
        "rows": rows,
        "ms": ms,
        "tflops": work / ms / 1e9,
        "tokens_per_s": rows / ms * 1e3,
        "samples_ms": timing.time.samples_ms,
    }


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-seconds", type=float, default=2.0)
    args = parser.parse_args()
    found = measured(args.max_seconds)
    args.out.write_text(json.dumps(found) + "\n")
    word = "reached" if found["ms"] <= BAR_MS else "MISSED"
    print(f"{found['rows']} rows: {found['ms']:.2f} ms, {found['tflops']:.0f} TFLOP/s; bar {BAR_MS:g} ms: {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
