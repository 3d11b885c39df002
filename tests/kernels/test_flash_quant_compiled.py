"""The quantised kernels compiled for sm_90: 8-bit products of warpgroups, and no loop that spills."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash.quant import api, forward, prepare
from attnbench.kernels.flash.quant.config import SHARED_BYTES, TABLE, QuantConfig, Shape, shared_bytes
from attnbench.kernels.flash.quant.hopper import forward as hopper_forward

from .aot import NO_OLDEST, Compiled, Job, compile_with, listed, recorded, tritons

CELLS = {
    "pinned": [("m128n128w8s4-ws-beside", 128, False)],
    "3.6": [
        ("m192n128w12s4-ws", 128, False),
        ("m64n128w4s2-ws-x2", 128, False),
        ("m192n128w12s4-ws", 64, True),
        ("m128n64w8s3", 128, False),
        ("m128n128w8s3", 64, True),
    ],
}
MORE = {"3.6": [("m64n128w4s4-ws-x2", 64, True), ("m128n128w8s4-ws-beside", 128, True)]}
"""Short form, dim, causal."""
BATCH, HEADS, SEQLEN = 2, 16, 4096


def jobs_of(short: str, dim: int, causal: bool) -> list[Job]:
    """What the launchers launch: the forward, and what quantises."""
    q, k, v, out = (torch.empty(BATCH, SEQLEN, HEADS, dim, dtype=torch.bfloat16, device="meta") for _ in range(4))
    problem = api.quant_problem_of(q, k, v, causal=causal)
    config, made = QuantConfig.parse(short), api.allocate(q, k, problem)
    lse = torch.empty(BATCH, HEADS, SEQLEN, device="meta")
    room, name = (
        (hopper_forward, "flash_quant_hopper_forward") if config.order == "ws" else (forward, "flash_quant_forward")
    )
    with recorded(room, name, capability=90) as attention:
        api.launch_quant(made, out, lse, problem, config)
    with recorded(prepare, "quantise", capability=90) as before:
        api.launch_prepare(q, k, v, made, problem)
    return [
        replace(job, label=f"{name} d{dim}{' causal' * (causal and name == short)}")
        for job, name in zip((*attention, *before), (short, "quantise"), strict=True)
    ]


@cache
def compiled(version: str) -> dict[str, Compiled]:
    """All cells of a Triton, by label."""
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    jobs = {job.label: job for cell in listed(CELLS, MORE)[version] for job in jobs_of(*cell)}
    return compile_with({version: tritons()[version]}, list(jobs.values()))[version]


@pytest.mark.parametrize("version", CELLS)
def test_four_programs_of_the_preparation_fit_and_hand_over_what_is_written(version):
    found = [one for label, one in compiled(version).items() if label.startswith("quantise")]
    assert len(found) == len({dim for _, dim, _ in CELLS[version]})
    for one in found:
        assert one.registers * one.warps * 32 * 4 <= 65536
        assert one.spills == 0
        # Bytes are put together, and no half of a register is moved to be widened.
        assert one.sass["PRMT"] <= 56
        # Rows of a statistic are added up in a thread, and exchanged behind the loop.
        assert one.sass["LDS"] <= 80
        # One wait of K, of V and of Q; K's and V's statistics say that they are together.
        assert one.handovers == {"acquire": 3, "release": 2, "open": 0}


@pytest.mark.parametrize("version", CELLS)
def test_products_are_of_warpgroups_in_8_bits_and_no_loop_spills(version):
    wrong = {}
    for short, dim, causal in listed(CELLS, MORE)[version]:
        one = compiled(version)[f"{short} d{dim}{' causal' * causal}"]
        config, shape = QuantConfig.parse(short), Shape(dim=dim)
        faults = ["products of single warps"] * ({"IGMMA", "QGMMA"} != {name for name in one.sass if "MMA" in name})
        if config.order == "plain":
            faults += [f"{one.spills} spills"] * (one.spills > 0)
        else:
            beside = config.products == "beside"
            # Each product is waited for, with `beside` also in front of the loop and behind it.
            faults += [f"{one.waits} waits"] * (one.waits != (4 if beside else 2) * config.groups)
            faults += [f"{one.early} arrivals before the warps have met"] * (one.early > 2)
            faults += [f"{one.warps} warps"] * (one.warps != 4 * config.groups + 4)
            bytes_of_tiles = shared_bytes(config, shape)
            faults += [f"{one.shared} bytes of shared memory, not {bytes_of_tiles}"] * (
                not 0 <= one.shared - bytes_of_tiles <= 2048
                or config.programs * (one.shared + 1024) > SHARED_BYTES + 1024
            )
            faults += [f"{len(one.loops)} loops"] * (len(one.loops) != config.groups)
            for loop in one.loops:
                spilled = loop["sass"].get("LDL", 0) + loop["sass"].get("STL", 0)
                # Triton 3.9 keeps a number of a masked tile's position in local memory.
                faults += [f"{spilled} spills in the loop"] * (spilled > 2 * (version == "pinned"))
                faults += ["conversions of scores"] * ("I2FP" in loop["sass"])
                faults += ["weights are rearranged"] * ("PRMT" in loop["sass"])
                # An exponential a score, 64 rows of them to 128 threads.
                faults += [f"{loop['beside'].get('MUFU', 0)} MUFU beside products"] * (
                    beside and loop["beside"].get("MUFU", 0) < config.block_n * 3 // 8
                )
                exchanges = loop["sass"].get("SHFL", 0) + loop["sass"].get("SEL", 0)
                # Two rows of a thread, two exchanges each for the largest score; none for the operand of the weights.
                faults += [f"{exchanges} exchanges between threads"] * (exchanges != 4)
        if faults:
            wrong[short, dim, causal] = faults
    assert not wrong


def test_every_default_is_compiled():
    held = {(cell[0], cell[1]) for cells in CELLS.values() for cell in cells}
    assert {(row["config"], row["dim"]) for row in TABLE.rows("forward") if row.get("cards") != [0]} <= held


@pytest.mark.parametrize(
    ("room", "name"),
    [(hopper_forward, "flash_quant_hopper_forward"), (forward, "flash_quant_forward"), (prepare, "quantise")],
)
def test_nothing_is_compiled_anew_for_another_batch_head_or_length(room, name):
    params = {param.name: param for param in getattr(room, name).params}
    tuples = {"inputs", "statistics", "made", "strides", "out_strides"}
    numbers = {one for one in params if one.islower() and not one.endswith(("_desc", "_ptr"))} - {"scale"} - tuples
    if name == "flash_quant_forward":
        numbers -= {"seqlen_q", "seqlen_k"}
    assert numbers == {one for one in params if params[one].do_not_specialize}
