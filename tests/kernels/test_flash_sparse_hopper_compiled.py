"""The block-sparse forward compiled for sm_90: products stay in flight beside the softmax, loops spill nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash.sparse import forward as sparse_forward
from attnbench.kernels.flash.sparse.config import SHARED_BYTES, TABLE, Shape, SparseConfig, query_tiles, shared_bytes
from attnbench.kernels.flash.sparse.hopper import forward as sparse_hopper_forward
from attnbench.kernels.flash.sparse.lists import BlockLists
from attnbench.kernels.flash.sparse.problem import sparse_problem_of

from .aot import NO_OLDEST, Job, compile_with, listed, recorded, tritons

BATCH, HEADS, SEQLEN = 2, 16, 4096
CELLS = {
    "pinned": [
        ("m128n128w8s2-ws-deep-lazy", 128, (128, 128), True),
        ("m64n128w4s2-ws-lazy-x2", 64, (128, 128), True),
        ("m64n64w4s3-ws-lazy-x2", 128, (64, 64), True),
        ("m64n128w4s3-ws-joint-lazy-x2", 128, (64, 64), True),
        ("m64n64w4s3-ws-lazy-rs-x2", 128, (64, 64), True),
        ("m128n128w8s2-ws-deep-lazy", 128, (128, 64), True),
    ],
    "3.6": [
        ("m64n64w4s3-ws-lazy-x3", 64, (64, 64), True),
        ("m128n64w8s4-ws-lazy", 128, (128, 64), True),
        ("m64n128w4s2-ws-lazy-x2", 64, (64, 64), True),
    ],
}
MORE = {
    "pinned": [("m192n128w12s4-ws-lazy", 64, (128, 128), True), ("m192n64w12s5-ws-lazy", 128, (64, 64), False)],
    "3.6": [
        ("m128n128w8s2-ws-deep-lazy", 128, (128, 128), False),
        ("m64n128w4s2-ws-lazy-x2", 64, (64, 128), False),
        ("m64n64w4s3-ws-lazy-x2", 128, (64, 128), False),
        ("m192n64w12s5-ws-lazy", 128, (64, 64), True),
        ("m128n128w8s2-ws-lazy-double", 128, (128, 128), False),
        ("m128n64w8s4-ws-lazy-double", 128, (128, 64), True),
        ("m64n64w4s3-ws-lazy-double-x2", 128, (64, 64), False),
        ("m64n128w4s2-ws-lazy-double-x2", 64, (128, 128), False),
        ("m64n128w4s3-ws-joint-lazy-x2", 128, (64, 64), False),
        ("m64n64w4s6-ws-joint-lazy-x2", 128, (64, 64), False),
        ("m64n64w4s3-ws-lazy-rs-x2", 128, (64, 64), False),
        ("m64n128w4s3-ws-joint-lazy-rs-x2", 128, (64, 64), False),
        ("m128n128w8s2-ws-deep-lazy", 128, (128, 64), False),
        ("m128n128w8s3-ws-deep-lazy", 64, (128, 64), False),
    ],
}
"""Short form, dim, block, causal.  Each default by a Triton, by the oldest with `MORE` all.  Triton 3.9 keeps up to twelve
numbers of three consumers in local memory."""


def job_of(short: str, dim: int, block: tuple[int, int], causal: bool) -> Job:
    """What the launcher launches."""
    q, k, v, out = (torch.empty(BATCH, SEQLEN, HEADS, dim, dtype=torch.bfloat16, device="meta") for _ in range(4))
    problem = sparse_problem_of(q, k, v, block=block, causal=causal)
    config = SparseConfig.parse(short)
    share, unit = config.share(block[0]), config.unit(block[0])
    batch, heads, _, columns = problem.map_shape
    rows = SEQLEN // unit
    counts, indices, places, items = (
        torch.empty(shape, dtype=torch.int32, device="meta")
        for shape in (
            (batch, heads, rows),
            (batch, heads, -(-rows // share), columns),
            (batch, heads, rows, columns),
            (batch * heads * -(-rows // share), 3),
        )
    )
    lists = BlockLists(
        counts=counts,
        indices=indices,
        places=places if share > 1 else None,
        items=items,
        share=share,
        unit=unit,
        block=block,
        seqlen_q=SEQLEN,
        seqlen_k=SEQLEN,
        causal=causal,
    )
    lse = torch.empty(BATCH, HEADS, SEQLEN, device="meta")
    with recorded(sparse_hopper_forward, "flash_sparse_hopper_forward", capability=90) as jobs:
        sparse_forward.launch_sparse(q, k, v, out, lse, lists, problem, config)
    (job,) = jobs
    return replace(job, label=f"{short} d{dim} {block}{' causal' * causal}")


def faults(short: str, dim: int, block: tuple[int, int], one, version: str) -> list[str]:
    """What of a compiled configuration is not as it should be."""
    config, shape = SparseConfig.parse(short), Shape(dim=dim, block_q=block[0], block_k=block[1])
    wrong = ["serialized"] * one.serialized + ["products of single warps"] * (one.sass["HGMMA"] != one.tensor_core)
    wrong += [f"{one.early} arrivals before the warps have met"] * (one.early > 2)
    wrong += ["no tensor map"] * (one.sass.get("UTMALDG", 0) == 0)
    wrong += [f"{one.warps} warps"] * (one.warps != 4 * config.groups + 4)
    bytes_of_tiles = shared_bytes(config, shape, query_tiles(config, shape))
    wrong += [f"{one.shared} bytes of shared memory, not {bytes_of_tiles}"] * (
        not 0 <= one.shared - bytes_of_tiles <= 1024 or config.programs * (one.shared + 1024) > SHARED_BYTES + 1024
    )
    wrong += [f"{len(one.loops)} loops that multiply"] * (len(one.loops) != config.groups)
    for loop in one.loops:
        spilled = loop["sass"].get("LDL", 0) + loop["sass"].get("STL", 0)
        wrong += [f"{spilled} spills in the loop"] * (spilled > 12 * (version == "pinned" and config.groups == 3))
        # An exponential a score, 64 rows of them to 128 threads, and two factors; each beside the last tile's product,
        # but for the factors of a shared item, which are not needed before the next.
        powers = config.block_n // 2 + 2
        least = {"sass": powers, "beside": powers - 2 * (config.share(block[0]) > 1)}
        wrong += [
            f"{found} MUFU {part}, not {powers}"
            for part, fewest in least.items()
            if not fewest <= (found := loop[part].get("MUFU", 0)) <= powers
        ]
    return wrong


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_products_run_beside_the_softmax_and_no_loop_spills(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    made = [(job_of(*cell), *cell[:3]) for cell in listed(CELLS, MORE)[version]]
    found = compile_with({version: tritons()[version]}, [job for job, *_ in made])[version]
    assert not {job.label: wrong for job, *cell in made if (wrong := faults(*cell, found[job.label], version))}


def is_several(short: str, block_k: int) -> bool:
    """Whether a tile has the keys of two blocks."""
    return SparseConfig.parse(short).block_n > block_k


def test_every_default_is_compiled():
    held = {(short, dim, is_several(short, block[1])) for cells in CELLS.values() for short, dim, block, _ in cells}
    shipped = {
        (row["config"], row["dim"], is_several(row["config"], row.get("block_k", 128)))
        for row in TABLE.rows("forward")
        if SparseConfig.parse(row["config"]).order == "ws"
    }
    assert shipped
    assert shipped <= held


def test_nothing_is_compiled_anew_for_another_batch_head_or_length():
    params = {param.name: param for param in sparse_hopper_forward.flash_sparse_hopper_forward.params}
    numbers = {name for name in params if name.islower() and not name.endswith(("_desc", "_ptr"))} - {"scale"}
    assert numbers == {name for name in params if params[name].do_not_specialize}
