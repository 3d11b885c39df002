"""`select` of block-sparse HSTU for Hopper, compiled: it ranks beside products and within threads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.bsa.call import BsaCall, allocate
from attnbench.kernels.hstu.bsa.hopper import select as hopper
from attnbench.kernels.hstu.bsa.hopper.select_config import default_select
from attnbench.kernels.hstu.bsa.plan import BsaConfig, saved_shapes
from attnbench.kernels.hstu.bsa.problem import BsaProblem

from .aot import EVERY, NO_OLDEST, compile_with, recorded, tritons

BATCH, SEQLEN = 2, 8192
D128, D64 = {}, {"attn_dim": 64, "linear_dim": 64, "heads": 8}
SHAPES = {
    "pinned": {"d128": D128},
    "3.6": {"every-option": {"local_window": 128, "gates": 3, "has_cache": True, "linear_dim": 64}}
    | ({"d64": D64} if EVERY else {}),
}
"By the Triton that compiles them; each takes seconds.  128 dims by both, with every option by the one alone."


def call_of(**values):
    rows = BATCH * SEQLEN
    p = BsaProblem(
        **{
            "batch": BATCH,
            "heads": 4,
            "queries": rows,
            "keys": rows,
            "max_seqlen": SEQLEN,
            "max_seqlen_q": SEQLEN,
            "attn_dim": 128,
            "linear_dim": 128,
            "dtype": torch.bfloat16,
            "block_size": 32,
            "block_counts": 4,
            "local_window": 0,
            "gates": 2,
            "alpha": 0.1,
            "scaling_seqlen": SEQLEN,
            "shared": False,
            "pairs": False,
            "has_targets": False,
            "has_cache": False,
        }
        | values
    )

    def empty(*shape, dtype=torch.bfloat16):
        return torch.empty(*shape, dtype=dtype, device="meta")

    offsets = empty(BATCH + 1, dtype=torch.int64)
    return BsaCall(
        problem=p,
        config=BsaConfig(),
        q=empty(rows, p.heads, p.attn_dim),
        k=empty(rows, p.heads, p.attn_dim),
        v=empty(rows, p.heads, p.linear_dim),
        gates=empty(rows, p.heads, p.gates),
        offsets=offsets,
        offsets_q=offsets if p.has_cache else None,
        num_targets=None,
        out=empty(rows, p.heads, p.linear_dim),
        blocks=empty(rows, p.heads, p.block_counts, dtype=torch.int32),
        workspace=allocate(saved_shapes(p, BsaConfig()), torch.device("meta")),
    )


def job_of(label, call):
    with recorded(hopper, "hstu_bsa_hopper_select", capability=90) as jobs:
        hopper.select_hopper(call)
    (job,) = jobs
    return replace(job, label=label)


def faults(one, call):
    """What is not as it should be."""
    cut = default_select(call.problem)
    dims = call.dims()
    shared = cut.shared_bytes(dims["BLOCK_D"], dims["BLOCK_V"])
    wrong = ["serialized"] * one.serialized + [f"{one.early} arrivals before the warps have met"] * (one.early > 0)
    wrong += [f"{one.shared} bytes of shared memory, not {shared}"] * (not 0 <= one.shared - shared <= 1024)
    # Of each warpgroup whole tiles of means, masked ones, and keys nearby.
    wrong += [f"{len(one.loops)} loops"] * (len(one.loops) != 3 * cut.groups)
    scores = cut.rows * cut.blocks // 128
    for place, loop in enumerate(one.loops):
        sass = loop["sass"]
        wrong += [f"loop {place}: spills"] * bool({"LDL", "STL"} & {*sass})
        wrong += [f"loop {place}: moves between threads"] * bool({"SHFL", "STS", "LDS"} & {*sass})
        # Of each stripe one for its scores and one for its sum.
        wrong += [f"loop {place}: {sass['WARPGROUP.DEPBAR']} waits"] * (sass["WARPGROUP.DEPBAR"] != cut.rows // 32)
        wrong += [f"loop {place}: {sass['MUFU']} tanh of {scores}"] * (sass["MUFU"] != scores)
        # To rank a score takes 7.5 operations, without the mask; a few may stand before.
        beside = loop["beside"]["all"]
        wrong += [f"loop {place}: {beside} beside a product"] * (place % 3 < 2 and beside < 7 * scores)
    least = min(loop["sass"]["all"] for place, loop in enumerate(one.loops) if place % 3 == 0)
    # A multiplication, a tanh, a multiply-add, half a conversion, the ranking, and the rest of a tile.
    wrong += [f"{least} instructions a tile"] * (least > 11.5 * scores + 100)
    # What is left is put by once a job.
    return wrong + [f"{one.spills} spills"] * (one.spills > 100)


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_ranking_runs_beside_products_and_within_threads(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    calls = {label: call_of(**values) for label, values in SHAPES[version].items()}
    found = compile_with({version: tritons()[version]}, [job_of(*item) for item in calls.items()])[version]
    assert not {label: wrong for label, call in calls.items() if (wrong := faults(found[label], call))}


def test_another_batch_or_length_compiles_nothing_anew():
    params = {param.name: param for param in hopper.hstu_bsa_hopper_select.params}
    numbers = {name for name in params if name.islower() and not name.endswith(("_desc", "_ptr"))}
    assert numbers - {"half_alpha", "scale"} == {name for name in params if params[name].do_not_specialize}
