"""Problems of several ranks, and what the workloads' own oracles say of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnbench.parallel.problem import HSTU, SOFTMAX, Problem
from attnbench.workloads.attention import WORKLOAD as ATTENTION
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD as SILU


def problem_of(lengths: tuple[int, ...], *, causal: bool, function: str = SOFTMAX, heads_kv: int = 4) -> Problem:
    return Problem(
        lengths=lengths,
        heads=4 if function == HSTU else 8,
        heads_kv=heads_kv,
        dim=16,
        dtype="float32",
        causal=causal,
        scale=0.25,
        function=function,
        divisor=max(lengths),
    )


def inputs_of(problem: Problem, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in problem.shapes().items() if name != "out"}


def truth(problem: Problem, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """In fp64, of the workloads' own oracles; softmax cases have no empty sequences, which have no rows here either."""
    softmax = problem.function == SOFTMAX
    lengths = [length for length in problem.lengths if length or not softmax]
    shape = {
        "batch": len(lengths),
        "seqlen": max(lengths),
        "nheads": problem.heads,
        "causal": problem.causal,
        "dtype": "fp32",
        "lengths": ":".join(map(str, lengths)),
    }
    workload = ATTENTION if softmax else SILU
    own = {"nheads_kv": problem.heads_kv, "headdim": problem.dim} if softmax else {"attn_dim": problem.dim}
    case = workload.case({**shape, **own, **({} if softmax else {"alpha": problem.scale, "gates": False})})
    inputs = replace(workload.inputs(case, seed=0, kind="zeros", device="cpu"), **tensors)
    return workload.oracle(problem.function, case, inputs, dtype=torch.float64, draw=Draw())["out"]


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found.double(), wanted, atol=2e-5, rtol=1e-4)
