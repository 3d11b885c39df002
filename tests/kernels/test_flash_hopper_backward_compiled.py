"""The flash backward for Hopper compiled without a GPU: no step spills, no product waits for another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash import backward as flash_backward
from attnbench.kernels.flash.config.backward import TABLE, parse_backward, why_not
from attnbench.kernels.flash.hopper import backward as flash_hopper_backward
from attnbench.kernels.flash.problem import problem_of

from .aot import NO_OLDEST, compile_with, recorded, tritons

BATCH, HEADS, SEQLEN = 4, 4, 1024
JOBS = {
    "128 dims, causal": ("b64x128w8s2-atomic-tma-ws", 128, False, {"causal": True}),
    "64 dims, packed, grouped, window": ("b128x128w8s2-atomic-tma-ws", 64, True, {"window": (100, 10)}),
    "256 dims, causal": ("b64x64w8s2-atomic-tma-ws", 256, False, {"causal": True}),
    "256 dims, causal, direct": ("b64x64w8s2-atomic-tma-ws-direct", 256, False, {"causal": True}),
    "256 dims, carried": ("b64x64w8s2-atomic-tma-ws-carried", 256, False, {}),
}
EXPECTED = {
    "128 dims, causal": (10, 80, 4, 0),
    "64 dims, packed, grouped, window": (14, 96, 4, 0),
    "256 dims, causal": (8, 96, 4, 0),
    "256 dims, causal, direct": (10, 96, 0, 32),
    "256 dims, carried": (8, 96, 0, 48),
}
"""Waits of both warpgroups for P, dS, dQ and dK, 64 rows each, and for the last dQ; products; additions to the sums of dQ
by TMA; instructions that add to them from registers."""


def jobs():
    """What the launcher launches, one job a row of `JOBS`."""
    found = []
    for label, (short, dim, packed, mask) in JOBS.items():
        rows = (BATCH * SEQLEN,) if packed else (BATCH, SEQLEN)
        q, out, dout, dq = (torch.empty(*rows, HEADS, dim, dtype=torch.bfloat16, device="meta") for _ in range(4))
        k, v, dk, dv = (
            torch.empty(*rows, HEADS // (1 + packed), dim, dtype=torch.bfloat16, device="meta") for _ in range(4)
        )
        offsets = torch.empty(BATCH + 1, dtype=torch.int32, device="meta") if packed else None
        problem = problem_of(q, k, v, **mask, cu_seqlens_q=offsets, max_seqlen_q=SEQLEN if packed else None)
        config, lse = parse_backward(short), torch.empty(1, HEADS, BATCH * SEQLEN, device="meta")
        assert why_not(config, (9, 0), 2, dim, dim) is None
        with (
            recorded(flash_backward, "flash_backward_prepare", "flash_backward_round", capability=90),
            recorded(
                flash_hopper_backward, "flash_hopper_backward", "flash_hopper_backward_wide", capability=90
            ) as one,
        ):
            flash_backward.launch_backward(
                q, k, v, out, dout, lse, dq, dk, dv, problem, config, flash_backward.workspace_of(q, problem, config)
            )
        found += [replace(job, label=label) for job in one]
    return found


def test_every_default_of_the_kernel_is_compiled():
    shipped = {row["config"] for row in TABLE.rows("backward") if parse_backward(row["config"]).order == "ws"}
    assert shipped <= {short for short, *_ in JOBS.values()}


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_no_step_spills_and_no_product_waits_for_another(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    found = compile_with({version: tritons()[version]}, jobs())[version]
    assert list(found) == list(JOBS)
    for label, one in found.items():
        # Up to four registers of the prologue and the last dQ, never of a step.
        assert one.spills <= 16, (label, one)
        assert not any(loop["sass"].get(name) for loop in one.loops for name in ("LDL", "STL")), (label, one)
        assert not one.early, (label, one)
        waits, products, additions, atomics = EXPECTED[label]
        assert one.waits == waits, (label, one)
        assert one.sass["HGMMA"] == one.tensor_core == products, (label, one)
        assert one.sass.get("UTMAREDG", 0) == additions, (label, one)
        assert one.sass.get("REDG", 0) == atomics, (label, one)
        assert not set(one.sass) & {"RED", "ATOM", "ATOMG"}, (label, one)
        assert len(one.loops) == 2, (label, one)
        for loop in one.loops:
            # Exponentials, dS, and dQ's way into shared memory run beside products.
            for name in ("MUFU", "FADD", "STS", "REDG"):
                assert loop["beside"].get(name) == loop["sass"].get(name), (label, one)
        assert one.shared <= 227 * 1024, (label, one)
        assert one.warps == 12, (label, one)
