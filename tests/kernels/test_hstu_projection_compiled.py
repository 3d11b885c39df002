"""The wide product with SiLU and append, compiled for the cards it is for: nothing spills, and the products are the tensor
cores'."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.paged.problem import Step
from attnbench.kernels.hstu.projection import portable
from attnbench.kernels.hstu.projection.config import TILES, default_config
from attnbench.kernels.shared.card import Card, stood_in_for

from .aot import EVERY, NO_OLDEST, compile_with, recorded, tritons

SHAPES = {
    (128, 128): (384, 1024, 256),
    (128, 64): (384, 512, 128),
    (64, 64): (129, 512, 128),
    (64, 32): (64, 1024, 256),
}
"Rows, dim, and dim of a head, of which there are four, that take each tile on 132 SMs."
ROOM = {80: 163, 90: 227, 100: 227}
PAGE, PAGES = 64, 1000


def job_of(capability, tile, *, dtype=torch.bfloat16, cached=True, early=False):
    """What the default of a shape launches; the tile it is to have, or of fp32 none."""
    rows, dim, head = SHAPES[tile]
    wide, tma = 4 * head, capability >= 90
    config = default_config((capability // 10, 0), dtype.itemsize, rows, 4 * wide, 132, tma=tma)
    assert (config.block_m, config.block_n) == tile or dtype == torch.float32
    x, weight, bias, out = (
        torch.empty(*shape, dtype=dtype, device="meta")
        for shape in ((rows, dim), (4 * wide, dim), (4 * wide,), (rows, 4 * wide))
    )
    pool, table = None, None
    if cached:
        pool = torch.empty(PAGES, 2, PAGE, 4, head, dtype=dtype, device="meta")
        given = {"offsets": 2, "cached": 1, "indptr": 2, "indices": PAGES, "num_targets": 1}
        made = {name: torch.empty(length, dtype=torch.int32, device="meta") for name, length in given.items()}
        table = Step(**made, max_new=rows, max_cached=4096)
    with (
        recorded(portable, "hstu_projection", capability=capability) as jobs,
        stood_in_for(Card((capability // 10, 0), 132)),
    ):
        portable.launch_projection(x, weight, bias, out, pool, table, config, silu=cached, early=early)
    label = f"{capability} {config.short} {str(dtype)[6:]}{' pages and SiLU' * cached}{' early' * early}"
    return replace(jobs[0], label=label)


def jobs_to_hold(version, capability):
    """The tile of the model `bench` with all that the epilogue does; before a release all tiles, without it, and fp32."""
    jobs = [job_of(capability, TILES[0])] + [job_of(capability, TILES[0], early=True)] * (capability == 90)
    if EVERY:
        jobs += [job_of(capability, tile) for tile in TILES[1:]] + [job_of(capability, TILES[0], cached=False)]
        jobs += [job_of(capability, TILES[0], dtype=torch.float32)] * (version == "pinned")
    return jobs


@pytest.mark.parametrize(("version", "capability"), [("pinned", 80), ("pinned", 90), ("pinned", 100), ("3.6", 90)])
def test_nothing_spills_and_products_are_the_tensor_cores(version, capability):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    jobs = jobs_to_hold(version, capability)
    found = compile_with({version: tritons()[version]}, jobs)[version]
    for job in jobs:
        one = found[job.label]
        assert one.spills == 0, job.label
        assert one.shared <= ROOM[capability] * 1024, (job.label, one.shared)
        if "float32" in job.label:
            continue
        assert one.tensor_core > 0, job.label
        assert not one.serialized, job.label
        assert (one.sass.get("UTMALDG", 0) > 0) == (capability >= 90), job.label
        if capability == 90:
            assert one.sass["HGMMA"] == one.tensor_core, job.label
            # It waits once, and lets go of the kernel behind it once.
            assert [one.sass.get(name, 0) for name in ("ACQBULK", "PREEXIT")] == ["early" in job.label] * 2, job.label
    bench = found[jobs[0].label]
    assert bench.registers * 256 <= 65536, bench.registers


def test_nothing_is_compiled_for_a_cpu():
    from attnbench.kernels.hstu.projection.api import project

    with pytest.raises(ValueError, match=r"hstu_project: x.device=cpu has no compiled kernels; a CUDA device"):
        project(torch.ones(3, 8), torch.ones(16, 8), torch.ones(16), heads=1)
