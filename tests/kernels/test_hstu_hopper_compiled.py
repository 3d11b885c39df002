"""The HSTU forward for Hopper, compiled: nothing spills, no product waits for another, SiLU runs beside products."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.dense import forward as hstu_dense_forward
from attnbench.kernels.hstu.dense.configs import TABLE, ForwardConfig
from attnbench.kernels.hstu.dense.problem import Problem

from .aot import NO_OLDEST, compile_with, listed, recorded, tritons

BATCH, HEADS, SEQLEN = 4, 4, 1024
TWO = ForwardConfig(block_m=128, block_n=128, warps=8, stages=2, order="ws")
THREE = ForwardConfig(block_m=192, block_n=64, warps=12, stages=3, order="ws")
SHIPPED = [(row["dim"], ForwardConfig.parse(row["config"]), False) for row in TABLE.rows("hopper_forward")]
ONE_A_DIM = list({dim: (dim, *rest) for dim, *rest in SHIPPED}.values())
SHAPES = {
    "pinned": [*ONE_A_DIM[1:], (128, TWO, True), (*ONE_A_DIM[0], 1)],
    "3.6": [one for one in SHIPPED if one not in ONE_A_DIM] + ONE_A_DIM[:1],
}
MORE = {"3.6": [*ONE_A_DIM[1:], (32, THREE, False)]}
"""Dims, configuration, whether every mask, and a batch that is not `BATCH`, by the Triton that compiles them; each
takes seconds.  One of each dim by the pinned, the first of them where no work item is drawn; by the oldest the others
and, with `MORE`, all."""


def job_of(dim, config, every_mask, batch=BATCH, *, sums=None):
    """What the launcher launches; of a batch of 1 one job, which is not drawn.

    With `sums` partial sums: over its "own" keys under a causal mask, or over "other" keys without one.
    """
    heads, seqlen = (HEADS, SEQLEN) if batch > 1 else (1, 64)

    def offsets(length):
        return torch.empty(length, dtype=torch.int64, device="meta")

    q, k, v, out = (torch.empty(batch * seqlen, heads, dim, dtype=torch.bfloat16, device="meta") for _ in range(4))
    problem = Problem(
        offsets=offsets(batch + 1),
        offsets_q=offsets(batch + 1) if every_mask or sums == "other" else None,
        num_targets=offsets(batch) if every_mask else None,
        max_seqlen=seqlen,
        max_seqlen_q=seqlen,
        alpha=0.1,
        scaling_seqlen=seqlen,
        causal=sums != "other",
        contextual_len=8 if every_mask else 0,
        max_attn_len=100 if every_mask else None,
    )
    with recorded(hstu_dense_forward, "hstu_hopper_forward", capability=90) as jobs:
        hstu_dense_forward.launch_forward(q, k, v, None if sums else out, problem, config)
    (job,) = jobs
    return replace(job, label=f"d{dim} {config} {every_mask} {batch}" + (f" {sums}" if sums else ""))


def faults(one, dim, config, *, every_mask, version):
    """What is not as it should be.

    Triton 3.9 puts by what a thread knows of its place, at the start, and over 128 dims fetches one of it for a tile it
    masks.
    """
    put_by = 45 if version == "pinned" else 0
    wrong = [f"{one.spills} spills"] * (one.spills > put_by) + ["serialized"] * one.serialized
    # The loader is one warp: where it tells a job, and that there is none, it meets by a barrier of its own.
    wrong += [f"{one.early} arrivals before the warps have met"] * (one.early > 2)
    shared = config.hopper_bytes(dim, dim, q_stages=config.hopper_flags(dim, dim)["ROOM"])
    wrong += [f"{one.shared} bytes of shared memory, not {shared}"] * (not 0 <= one.shared - shared <= 1024)
    # A tile's scores of a thread: each a tanh, beside the product with the values.
    scores, groups = config.block_n // 2, config.block_m // 64
    wrong += [f"{len(one.loops)} loops"] * (len(one.loops) != groups)
    for loop in one.loops:
        wrong += [f"{loop['beside'].get('MUFU', 0)} tanh of {scores} beside a product"] * (
            loop["beside"].get("MUFU", 0) != scores
        )
        wrong += ["spills in a loop"] * ("STL" in loop["sass"])
        wrong += ["loads of spills in a loop"] * (loop["sass"].get("LDL", 0) > (version == "pinned" and dim > 128))
        wrong += ["waits that are not the two"] * (loop["sass"]["WARPGROUP.DEPBAR"] != 2)
    # A multiplication, a tanh, a multiply-add, half a conversion each, for a tile that is masked two more; and the rest
    # of a step, which over 128 dims has twice the products to issue.
    least = min(loop["sass"]["all"] for loop in one.loops)
    return wrong + [f"{least} instructions a step"] * (
        not every_mask and least > 5.5 * scores + (120 if dim <= 128 else 190)
    )


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_nothing_spills_and_silu_runs_beside_products(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    shapes = listed(SHAPES, MORE)[version]
    made = [job_of(*shape) for shape in shapes]
    assert [job.constants["META"]["DRAWS"] for job in made] == [len(shape) == 3 for shape in shapes]
    found = compile_with({version: tritons()[version]}, made)[version]
    assert not {
        job.label: wrong
        for job, (dim, config, every_mask, *_) in zip(made, shapes, strict=True)
        if (wrong := faults(found[job.label], dim, config, every_mask=every_mask, version=version))
    }


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_partial_sums_too(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    config = ForwardConfig.parse(next(row["config"] for row in TABLE.rows("hopper_forward") if row["dim"] == 128))
    made = [job_of(128, config, False, sums=keys) for keys in ("own", "other")]
    assert all(job.constants["META"]["SPLIT"] for job in made)
    found = compile_with({version: tritons()[version]}, made)[version]
    assert not {
        label: wrong
        for label, one in found.items()
        if (wrong := faults(one, 128, config, every_mask=False, version=version))
    }


def test_another_batch_or_length_compiles_nothing_anew():
    params = {param.name: param for param in hstu_dense_forward.hstu_hopper_forward.params}
    numbers = {name for name in params if name.islower() and not name.endswith(("_desc", "_ptr"))}
    assert numbers - {"sequences", "half_alpha", "scale"} == {name for name in params if params[name].do_not_specialize}
