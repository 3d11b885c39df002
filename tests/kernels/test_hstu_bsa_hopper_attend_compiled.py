"""The selected branch of block-sparse HSTU for Hopper, compiled: copies of 16 bytes, no product waits for another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.bsa.call import BsaCall
from attnbench.kernels.hstu.bsa.hopper import attend as hstu_bsa_hopper_attend
from attnbench.kernels.hstu.bsa.hopper.attend_config import attend_shapes, default_attend
from attnbench.kernels.hstu.bsa.plan import BsaConfig, forward_shapes, saved_shapes
from attnbench.kernels.hstu.bsa.problem import BsaProblem

from .aot import EVERY, NO_OLDEST, compile_with, recorded, tritons

SEQLEN, BATCH = 4096, 8
PROBLEM = BsaProblem(
    batch=BATCH,
    heads=4,
    queries=SEQLEN * BATCH,
    keys=SEQLEN * BATCH,
    max_seqlen=SEQLEN,
    max_seqlen_q=SEQLEN,
    attn_dim=128,
    linear_dim=128,
    dtype=torch.bfloat16,
    block_size=32,
    block_counts=4,
    local_window=0,
    gates=3,
    alpha=0.1,
    scaling_seqlen=SEQLEN,
    shared=False,
    pairs=False,
    has_targets=False,
    has_cache=False,
)
NARROW = replace(
    PROBLEM,
    attn_dim=64,
    linear_dim=64,
    heads=8,
    block_size=64,
    block_counts=8,
    gates=0,
    shared=True,
    has_targets=True,
    has_cache=True,
)
SHAPES = {"pinned": {"wide": PROBLEM}, "3.6": {"narrow": NARROW} | ({"wide": PROBLEM} if EVERY else {})}
"By the Triton that compiles them: what is no default by the quicker one alone."


def job_of(name, problem):
    """What the launcher launches."""

    def meta(shape, dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    p, cut, config = problem, default_attend(problem), BsaConfig(attend_rows=128)
    shapes = saved_shapes(p, config) | forward_shapes(p, config) | attend_shapes(p, cut)
    q, k, v, out = (
        meta((p.queries, p.heads, dim), p.dtype) for dim in (p.attn_dim, p.attn_dim, p.linear_dim, p.linear_dim)
    )
    offsets = meta((p.batch + 1,), torch.int64)
    call = BsaCall(
        problem=p,
        config=config,
        q=q,
        k=k,
        v=v,
        gates=meta((p.queries, p.heads, 3), p.dtype) if p.gates else None,
        offsets=offsets,
        offsets_q=offsets if p.has_cache else None,
        num_targets=meta((p.batch,), torch.int64) if p.has_targets else None,
        out=out,
        blocks=meta((p.queries, p.list_heads, p.block_counts), torch.int32),
        workspace={name: meta(*shape) for name, shape in shapes.items()},
    )
    with recorded(hstu_bsa_hopper_attend, "hstu_bsa_hopper_attend", capability=90) as jobs:
        hstu_bsa_hopper_attend.attend_hopper(call)
    (job,) = jobs
    return replace(job, label=name)


def faults(one, problem):
    """What is not as it should be; what programs and partitions are given may be put by, once a partition."""
    wrong = ["serialized"] * one.serialized + [f"{one.warps} warps"] * (one.warps != 20)
    copies = 128 * problem.attn_dim * 2 // 16 // 64
    wrong += [f"{one.sass['LDGSTS']} copies, not {copies}"] * (one.sass.get("LDGSTS") != copies)
    shared = default_attend(problem).shared_bytes(problem.attn_dim, problem.linear_dim, problem.block_size)
    wrong += [f"{one.shared} bytes of shared memory, not {shared}"] * (not -1024 <= one.shared - shared <= 1024)
    wrong += [f"{len(one.loops)} loops"] * (len(one.loops) != 1)
    # All partitions run at once: with 3900 instructions an H200's SMs waited for their code, and took 8 % longer.
    wrong += [f"{one.sass['all']} instructions"] * (one.sass["all"] > 2700)
    for loop in one.loops:
        wrong += ["waits that are not the two"] * (loop["sass"]["WARPGROUP.DEPBAR"] != 2)
        # What is put by of what the loop was given is read again, outside of the products.
        wrong += ["spills"] * (loop["sass"].get("STL", 0) > 0 or loop["sass"].get("LDL", 0) > 2)
    # `signal_places` and `produce_jobs` wait for other programs; tiles and jobs are published.
    orders = {name: one.handovers[name] for name in ("acquire", "release")}
    return wrong + [f"{orders}"] * (orders != {"acquire": 2, "release": 2})


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_rows_are_copied_16_bytes_at_a_time_and_nothing_spills(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    shapes = SHAPES[version]
    found = compile_with({version: tritons()[version]}, [job_of(*shape) for shape in shapes.items()])[version]
    assert not {name: wrong for name, problem in shapes.items() if (wrong := faults(found[name], problem))}


def test_another_batch_or_length_compiles_nothing_anew():
    params = {param.name: param for param in hstu_bsa_hopper_attend.hstu_bsa_hopper_attend.params}
    numbers = {name for name in params if name.islower() and not name.endswith(("_desc", "_ptr"))}
    assert numbers - {"sequences", "q_strides", "half_alpha", "scale"} == {
        name for name in params if params[name].do_not_specialize
    }
