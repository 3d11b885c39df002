"""The block-sparse forward in 8 bits compiled for sm_90: products of warpgroups in 8 bits, and no loop that spills."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash.sparse.lists import BlockLists
from attnbench.kernels.flash.sparse_quant import api, forward
from attnbench.kernels.flash.sparse_quant.config import (
    BARRIER_BYTES,
    TABLE,
    Shape,
    SparseQuantConfig,
    fault,
    shared_bytes,
)
from attnbench.kernels.flash.sparse_quant.hopper import forward as hopper_forward

from .aot import NO_OLDEST, Compiled, Job, compile_with, listed, recorded, tritons

CELLS = {
    "pinned": [("m128n128w8s4-ws-beside", 128, (128, 128), True), ("m64n64w4s4-ws-beside-x2", 128, (64, 64), False)],
    "3.6": [
        ("m64n128w4s2-ws-x2", 128, (128, 128), True),
        ("m64n128w4s4-ws-x2", 64, (64, 128), False),
        ("m64n64w4s3", 128, (64, 64), True),
    ],
}
MORE = {
    "3.6": [
        ("m64n64w4s4-ws-beside-x2", 64, (128, 64), False),
        ("m128n128w8s4-ws-beside", 128, (128, 128), False),
        ("m128n64w8s6-ws-beside", 128, (128, 64), True),
        ("m64n128w4s2-ws-beside-x2", 128, (64, 128), False),
        ("m64n64w4s4-ws-beside-x2", 128, (64, 64), True),
        ("m128n128w8s4-ws-beside", 64, (128, 128), True),
        ("m64n64w4s4-ws-x3", 64, (64, 64), False),
    ]
}
"""Short form, dim, block, causal.  Each default by a Triton, by the oldest with `MORE` all."""
BATCH, HEADS, SEQLEN = 2, 16, 4096


def job_of(short: str, dim: int, block: tuple[int, int], causal: bool) -> Job:
    """What the launcher launches."""
    q, k, v, out = (torch.empty(BATCH, SEQLEN, HEADS, dim, dtype=torch.bfloat16, device="meta") for _ in range(4))
    problem, dense = api.problems_of(q, k, v, block=block, causal=causal)
    config, made = SparseQuantConfig.parse(short), api.allocate(q, k, dense)
    batch, heads, rows, columns = problem.map_shape
    counts, indices, items = (
        torch.empty(shape, dtype=torch.int32, device="meta")
        for shape in ((batch, heads, rows), (batch, heads, rows, columns), (batch * heads * rows, 3))
    )
    lists = BlockLists(
        counts=counts,
        indices=indices,
        places=None,
        items=items,
        share=1,
        unit=block[0],
        block=block,
        seqlen_q=SEQLEN,
        seqlen_k=SEQLEN,
        causal=causal,
    )
    lse = torch.empty(BATCH, HEADS, SEQLEN, device="meta")
    hopper = config.order == "ws"
    room = hopper_forward if hopper else forward
    with recorded(room, f"flash_sparse_quant_{'hopper_' * hopper}forward", capability=90) as jobs:
        api.launch_sparse_quant(made, out, lse, lists, problem, config)
    (job,) = jobs
    return replace(job, label=label_of(short, dim, block, causal))


def label_of(short: str, dim: int, block: tuple[int, int], causal: bool) -> str:
    """Of a cell."""
    return f"{short} d{dim} {block}{' causal' * causal}"


@cache
def compiled(version: str) -> dict[str, Compiled]:
    """All cells of a Triton, by label."""
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    return compile_with({version: tritons()[version]}, [job_of(*cell) for cell in listed(CELLS, MORE)[version]])[
        version
    ]


def faults(config: SparseQuantConfig, shape: Shape, one: Compiled) -> list[str]:
    """What of a compiled configuration is not as it should be."""
    wrong = ["products of single warps"] * ({"IGMMA", "QGMMA"} != {name for name in one.sass if "MMA" in name})
    if config.order == "plain":
        return wrong + [f"{one.spills} spills"] * (one.spills > 0)
    beside = config.products == "beside"
    # Each product is waited for, with `beside` also in front of the loop and behind it.
    wrong += [f"{one.waits} waits"] * (one.waits != (4 if beside else 2) * config.groups)
    wrong += [f"{one.early} arrivals before the warps have met"] * (one.early > 2)
    wrong += [f"{one.warps} warps"] * (one.warps != 4 * config.groups + 4)
    wrong += [f"{one.registers} registers as launched"] * (one.registers > config.registers)
    bytes_of_tiles = shared_bytes(config, shape)
    wrong += [f"{one.shared} bytes of shared memory, not {bytes_of_tiles}"] * (
        not 0 <= one.shared - bytes_of_tiles <= BARRIER_BYTES or config.programs * (one.shared + 1024) > 228 * 1024
    )
    wrong += [f"{len(one.loops)} loops"] * (len(one.loops) != config.groups)
    for loop in one.loops:
        spilled = loop["sass"].get("LDL", 0) + loop["sass"].get("STL", 0)
        wrong += [f"{spilled} spills in the loop"] * (spilled > 0)
        wrong += ["conversions of scores"] * ("I2FP" in loop["sass"])
        wrong += ["weights are rearranged"] * ("PRMT" in loop["sass"])
        exchanges = loop["sass"].get("SHFL", 0) + loop["sass"].get("SEL", 0)
        # Two rows of a thread, two exchanges each for the largest score; none for the operand of the weights.
        wrong += [f"{exchanges} exchanges between threads"] * (exchanges != 4)
        # An exponential a score, 64 rows of them to 128 threads.
        wrong += [f"{loop['beside'].get('MUFU', 0)} MUFU beside products"] * (
            beside and loop["beside"].get("MUFU", 0) < config.block_n * 3 // 8
        )
    return wrong


@pytest.mark.parametrize("version", CELLS)
def test_products_are_of_warpgroups_in_8_bits_and_no_loop_spills(version):
    wrong = {}
    for cell in listed(CELLS, MORE)[version]:
        config = SparseQuantConfig.parse(cell[0])
        shape = Shape(dim=cell[1], block_q=cell[2][0], block_k=cell[2][1])
        assert fault(config, shape) is None
        if found := faults(config, shape, compiled(version)[label_of(*cell)]):
            wrong[label_of(*cell)] = found
    assert not wrong


def test_every_default_is_compiled():
    held = {(cell[0], cell[1]) for cells in CELLS.values() for cell in cells}
    assert {(row["config"], row["dim"]) for row in TABLE.rows("forward") if row.get("cards") != [0]} <= held


@pytest.mark.parametrize(
    ("room", "name"), [(hopper_forward, "flash_sparse_quant_hopper_forward"), (forward, "flash_sparse_quant_forward")]
)
def test_nothing_is_compiled_anew_for_another_batch_head_or_length(room, name):
    params = {param.name: param for param in getattr(room, name).params}
    numbers = {one for one in params if one.islower() and not one.endswith(("_desc", "_ptr"))} - {"made"}
    assert numbers == {one for one in params if params[one].do_not_specialize}
