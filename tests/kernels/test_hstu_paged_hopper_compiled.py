"""The paged HSTU forward for Hopper, compiled: nothing spills and no product waits for another, keys whole or split."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.dense import forward as dense
from attnbench.kernels.hstu.dense import parts
from attnbench.kernels.hstu.dense.configs import ForwardConfig
from attnbench.kernels.hstu.dense.problem import Problem
from attnbench.kernels.hstu.paged import forward
from attnbench.kernels.hstu.paged.configs import TABLE, PagedConfig
from attnbench.kernels.hstu.paged.problem import Step

from .aot import EVERY, NO_OLDEST, compile_with, recorded, tritons

BATCH, HEADS, NEW, PAGES = 4, 4, 384, 1000
SHIPPED = {row["dim"]: row["config"] for row in TABLE.rows("hopper_forward")}
SHAPES = {"pinned": [(128, 64, 2), (256, 32, 1)], "3.6": [(256, 64, 2)]}
"Dims, page size and parts, by the Triton that compiles them; each takes seconds."


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def paged_jobs(dim, page_size, splits):
    """The forward, and where keys are split the sum of the parts."""
    q, k, v, out = (empty(BATCH * NEW, HEADS, dim) for _ in range(4))
    table = {
        name: empty(length, dtype=torch.int32)
        for name, length in (("offsets", BATCH + 1), ("cached", BATCH), ("indptr", BATCH + 1), ("indices", PAGES))
    }
    step = Step(**table, num_targets=table["cached"], max_new=NEW, max_cached=4096)
    shape = forward.workspace_shape(q, splits)
    with (
        recorded(forward, "hstu_paged_hopper_forward", capability=90) as jobs,
        recorded(parts, "hstu_sum_parts", capability=90) as sums,
    ):
        forward.launch_forward(
            q,
            k,
            v,
            empty(PAGES, 2, page_size, HEADS, dim),
            out,
            step,
            PagedConfig.parse(SHIPPED[dim]),
            alpha=0.1,
            scaling_seqlen=1000,
            splits=splits,
            workspace=shape and empty(*shape, dtype=torch.float32),
        )
    return [replace(job, label=f"{job.label} d{dim} p{page_size} x{splits}") for job in jobs + sums]


def dense_job(dim, config):
    """The contiguous cached step with split keys."""
    q, out, k, v = (empty(BATCH * rows, HEADS, dim) for rows in (NEW, NEW, 4480, 4480))
    offsets = empty(BATCH + 1, dtype=torch.int32)
    problem = Problem(
        offsets=offsets,
        offsets_q=offsets,
        num_targets=empty(BATCH, dtype=torch.int32),
        max_seqlen=4480,
        max_seqlen_q=NEW,
        alpha=0.1,
        scaling_seqlen=4480,
        causal=True,
        contextual_len=0,
        max_attn_len=None,
    )
    with (
        recorded(dense, "hstu_hopper_forward", capability=90) as jobs,
        recorded(parts, "hstu_sum_parts", capability=90),
    ):
        dense.launch_forward(q, k, v, out, problem, replace(ForwardConfig.parse(config), parts=3))
    (job,) = jobs
    return replace(job, label=f"dense d{dim}")


def faults(job, one, *, version):
    """What is not as it should be.

    Triton 3.9 puts by what a thread knows of its place where it has an output to scale, over 128 dims.
    """
    if job.kernel.endswith(":hstu_sum_parts"):
        return [f"{one.spills} spills"] * (one.spills > 0)
    meta = job.constants["META"]
    put_by = 45 if version == "pinned" and not meta["SPLIT"] and meta["BLOCK_V"] > 128 else 0
    wrong = [f"{one.spills} spills"] * (one.spills > put_by) + ["serialized"] * one.serialized
    wrong += [f"{one.early} arrivals before the warps have met"] * (one.early > 2)
    wrong += [f"{one.shared} bytes of shared memory"] * (one.shared > 227 * 1024)
    wrong += [f"{len(one.loops)} loops"] * (len(one.loops) != meta["GROUPS"])
    for loop in one.loops:
        tanh = loop["beside"].get("MUFU", 0)
        wrong += [f"{tanh} tanh beside a product"] * (tanh != meta["BLOCK_N"] // 2)
        wrong += ["waits that are not the two"] * (loop["sass"]["WARPGROUP.DEPBAR"] != 2)
    return wrong


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_nothing_spills_and_no_product_waits_for_another(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    jobs = [job for shape in SHAPES[version] for job in paged_jobs(*shape)]
    jobs += [dense_job(256, "128x64w8s2-ws")] * (version == "3.6" and EVERY)
    found = compile_with({version: tritons()[version]}, jobs)[version]
    assert not {job.label: wrong for job in jobs if (wrong := faults(job, found[job.label], version=version))}


def test_another_batch_length_or_number_of_parts_compiles_nothing_anew():
    for kernel in (forward.hstu_paged_hopper_forward, parts.hstu_sum_parts):
        params = {param.name: param for param in kernel.params}
        numbers = {name for name in params if name.islower() and not name.endswith(("_desc", "_ptr"))}
        assert numbers - {"half_alpha", "scale"} == {name for name in params if params[name].do_not_specialize}
