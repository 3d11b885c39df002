"""The flash forward for Hopper, compiled for sm_90: products stay in flight beside the softmax, loops spill nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash import forward as flash_forward
from attnbench.kernels.flash.config.defaults import TABLE
from attnbench.kernels.flash.config.forward import HOPPER, WORDS, parse
from attnbench.kernels.flash.config.space import Shape, fault, shared_bytes, tile_columns
from attnbench.kernels.flash.hopper import forward as flash_hopper_forward
from attnbench.kernels.flash.problem import lse_shape, problem_of

from .aot import NO_OLDEST, Job, compile_with, listed, recorded, tritons

BATCH, HEADS, SEQLEN = 4, 16, 4096
CAUSAL, FULL, WINDOW = {"causal": True}, {}, {"window": (100, 20)}
CELLS = {
    "pinned": [
        ("m192n128w12s2-tma-ws-deep-lazy-ticket-l16", 64, FULL, False),
        ("m128n128w8s2-tma-ws-ticket-l16", 128, CAUSAL, True),
        ("m128n64w8s2-tma-ws-split-ticket-l16", 256, CAUSAL, False),
        ("m256n64w16s2-tma-pp-few", 64, WINDOW, False),
        ("m128n128w8s3-tma-ws-lazy-pieces-double-ticket-l16", 96, CAUSAL, True),
        ("m192n128w12s2-tma-ws-pieces-stored-ticket-l16", 96, CAUSAL, False),
        ("m128n64w8s2-tma-ws-pieces-ticket-l16", 160, FULL, False),
        ("m128n64w8s2-tma-ws-pieces-ticket-l16", 192, CAUSAL, True),
        ("m128n128w8s2-tma-ws-lazy-double-ticket-l16", 128, CAUSAL, True),
        ("m128n128w8s3-tma-ws-joint-lazy-pieces-stored-ticket-l16", 192, CAUSAL, True),
    ],
    "3.6": [
        ("m192n128w12s2-tma-ws-pieces-stored-ticket-l16", 96, FULL, True),
        ("m128n128w8s2-tma-ws-deep-lazy-pieces-ticket-l16", 96, CAUSAL, False),
        ("m192n128w12s3-tma-pp-ticket", 64, CAUSAL, False),
        ("m192n128w12s3-tma-ws-ticket-l16", 64, CAUSAL, True),
        ("m128n128w8s2-tma-ws-deep-lazy-ticket-l16", 128, FULL, False),
        ("m128n128w8s2-tma-ws-deep-lazy", 64, CAUSAL, False),
        ("m128n128w8s2-tma-ws-deep-lazy-ticket-l16", 64, FULL, False),
        ("m192n128w12s2-tma-ws-deep-lazy", 64, FULL, False),
        ("m128n128w8s2-tma-pp-pieces", 96, CAUSAL, False),
        ("m128n128w8s2-tma-pp", 128, FULL, False),
        ("m128n128w8s2-tma-ws-deep-lazy-double-ticket-l16", 128, FULL, False),
        ("m128n128w8s2-tma-ws-lazy-pieces-ticket-l16", 160, FULL, False),
        ("m128n128w8s3-tma-ws-joint-lazy-pieces-ticket-l16", 192, FULL, False),
        ("m128n128w8s3-tma-ws-joint-pieces-ticket-l16", 160, CAUSAL, False),
    ],
}
MORE = {
    "3.6": [
        ("m192n128w12s2-tma-ws-deep-lazy-ticket-l16", 64, FULL, False),
        ("m128n128w8s2-tma-ws-ticket-l16", 128, CAUSAL, True),
        ("m128n64w8s2-tma-ws-split-ticket-l16", 256, FULL, False),
        ("m256n64w16s2-tma-ws-mix-ticket", 64, FULL, True),
        ("m192n128w12s3-tma-ws-persistent", 64, CAUSAL, False),
        ("m128n64w8s2-tma-pp", 256, WINDOW, False),
        ("m128n128w8s3-tma-ws-lazy-pieces-double-ticket-l16", 96, FULL, False),
        ("m128n128w8s3-tma-ws-lazy-pieces-double-ticket-l16", 80, CAUSAL, False),
        ("m128n64w8s2-tma-ws-pieces-ticket-l16", 192, FULL, False),
        ("m128n64w8s2-tma-ws-pieces-ticket-l16", 160, CAUSAL, False),
        ("m128n128w8s2-tma-ws-pieces-ticket-l16", 160, WINDOW, False),
        ("m192n128w12s2-tma-ws-lazy-pieces-stored-ticket-l16", 80, FULL, False),
        ("m128n128w8s2-tma-ws-lazy-double-ticket-l16", 128, CAUSAL, False),
        ("m128n128w8s3-tma-ws-lazy-double-ticket-l16", 64, CAUSAL, False),
        ("m128n128w8s2-tma-ws-deep-lazy-pieces-double-ticket-l16", 96, FULL, False),
        ("m128n64w8s2-tma-ws-lazy-double-ticket-l16", 256, CAUSAL, False),
        ("m128n128w8s3-tma-ws-joint-lazy-pieces-ticket-l16", 192, CAUSAL, False),
        ("m128n128w8s3-tma-ws-joint-pieces-ticket-l16", 192, FULL, False),
        ("m128n128w8s3-tma-ws-joint-lazy-pieces-ticket-l16", 160, CAUSAL, True),
        ("m128n128w8s3-tma-ws-joint-pieces-stored-ticket-l16", 160, CAUSAL, False),
    ]
}
"""Short form, dim, mask, packed.  By 3.9 a default of each dim and the other order, by 3.6, the quicker one, the other
defaults, and with `MORE` all.  What is no default adds what no default has: a window, `few`, `mix`, a program a tile.

Triton 3.9 copies what products read from registers before each: with queries of 256 dims that are split it fetches up
to six spilled numbers in the loop; forms that are no default more."""


def job_of(short: str, dim: int, mask: dict, packed: bool) -> Job:
    """What the launcher launches."""
    shape = (BATCH * SEQLEN, HEADS, dim) if packed else (BATCH, SEQLEN, HEADS, dim)
    q, k, v, out = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for _ in range(4))
    offsets = {"cu_seqlens_q": torch.empty(BATCH + 1, dtype=torch.int32, device="meta"), "max_seqlen_q": SEQLEN}
    problem = problem_of(q, k, v, **mask, **(offsets if packed else {}))
    with recorded(flash_hopper_forward, "flash_hopper_forward", capability=90) as jobs:
        flash_forward.launch_forward(
            q, k, v, out, torch.empty(lse_shape(q, problem), device="meta"), problem, parse(short)
        )
    (job,) = jobs
    return replace(job, label=f"{short} d{dim} {' '.join(mask) or 'full'}{' packed' * packed}")


def faults(short: str, dim: int, one, version: str = "3.6") -> list[str]:
    """What of a compiled configuration is not as it should be."""
    config, shape = parse(short), Shape(dim=dim, dim_v=dim)
    groups = config.block_m // 64
    wrong = ["serialized"] * one.serialized + ["products of single warps"] * (one.sass["HGMMA"] != one.tensor_core)
    # The loader is one warp: where it tells a job, in its loop and behind it, it meets by a barrier of its own.
    wrong += [f"{one.early} arrivals before the warps have met"] * (one.early > 2)
    wrong += ["no tensor map"] * (one.sass.get("UTMALDG", 0) == 0)
    wrong += [f"{one.warps} warps"] * (one.warps != 4 * groups + 4)
    wrong += [f"{one.shared} bytes of shared memory, not {shared_bytes(config, shape)}"] * (
        not 0 <= one.shared - shared_bytes(config, shape) <= 2048 or one.shared > shape.shared_bytes
    )
    wrong += [f"{len(one.loops)} loops that multiply"] * (len(one.loops) != groups)
    for loop in one.loops:
        spilled = loop["sass"].get("LDL", 0) + loop["sass"].get("STL", 0)
        known = 6 * (version == "pinned" and dim > 128 and config.queries == "split")
        wrong += [f"{spilled} spills in the loop"] * (spilled > known)
        # An exponential a score, 64 rows of them to 128 threads, and two factors; each beside the last tile's product.
        powers = config.block_n // 2 - config.block_n // 16 * (config.exp == "mix") + 2
        wrong += [
            f"{loop[part].get('MUFU', 0)} MUFU {part}, not {powers}"
            for part in ("sass", "beside")
            if loop[part].get("MUFU", 0) != powers
        ]
        beside = loop["beside"].get("FMUL", 0)
        wrong += [f"{beside} FMUL beside, where the output takes its factor"] * (
            config.rescale == "lazy" and beside < sum(tile_columns(config, shape)) // 2
        )
    return wrong


# One test compiles all: a fixture would be made anew by each worker that runs tests of this file.
@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_products_run_beside_the_softmax_and_no_loop_spills(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    made = [(job_of(*cell), cell[0], cell[1]) for cell in listed(CELLS, MORE)[version]]
    found = compile_with({version: tritons()[version]}, [job for job, _, _ in made])[version]
    assert not {
        job.label: wrong for job, short, dim in made if (wrong := faults(short, dim, found[job.label], version))
    }


def test_what_the_rule_of_registers_leaves_out_spills_in_its_loop():
    short, dim = "m256n128w16s2-tma-ws", 64
    found = fault(parse(short), Shape(dim=dim, dim_v=dim))
    assert found is not None
    assert found[0] == "registers"
    job = job_of(short, dim, CAUSAL, False)
    one = compile_with({"pinned": None}, [job])["pinned"][job.label]
    assert any("spills in the loop" in said for said in faults(short, dim, one))


def test_nothing_is_compiled_anew_for_another_batch_head_length_or_window():
    params = {param.name: param for param in flash_hopper_forward.flash_hopper_forward.params}
    numbers = {name for name in params if name.islower() and not name.endswith(("_desc", "_ptr"))} - {
        "scale",
        "pointers",
    }
    assert numbers == {name for name in params if params[name].do_not_specialize}


def test_every_default_is_compiled_by_a_triton_and_by_the_oldest_among_more():
    held = {(cell[0], cell[1]) for cells in CELLS.values() for cell in cells}
    shipped = {(row["config"], row["dim"]) for row in TABLE.rows("forward") if parse(row["config"]).order in HOPPER}
    assert shipped
    assert shipped <= held
    assert shipped <= {(cell[0], cell[1]) for cell in CELLS["3.6"] + MORE["3.6"]}
    for version, cells in CELLS.items():
        assert {parse(cell[0]).order for cell in cells} == set(HOPPER)
        cells = cells + MORE.get(version, [])
        assert {cell[1] for cell in cells} >= {
            row["dim"] for row in TABLE.rows("forward") if parse(row["config"]).order in HOPPER
        }
        assert {cell[3] for cell in cells} == {True, False}


def test_every_value_of_every_field_is_compiled():
    forms = [parse(cell[0]) for cells in (*CELLS.values(), *MORE.values()) for cell in cells]
    for name in ("exp", "queries", "rings", "rescale", "dims", "weights", "grid"):
        assert {getattr(config, name) for config in forms} == {*WORDS[name]}, name
