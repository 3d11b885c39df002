"""The shipped defaults of the paged HSTU kernels, compiled for the cards they are for: nothing spills, and the products
are the tensor cores'."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.dense import parts
from attnbench.kernels.hstu.paged import forward, portable
from attnbench.kernels.hstu.paged.configs import TABLE, PagedConfig, default_config
from attnbench.kernels.hstu.paged.problem import PAGE_SIZES, Step
from attnbench.kernels.shared.card import Card, stood_in_for

from .aot import EVERY, NO_OLDEST, compile_with, recorded, tritons

KERNELS = ("hstu_paged_forward", "hstu_sum_parts", "hstu_paged_append")
BATCH, HEADS, NEW, PAGES = 4, 4, 384, 1000


def jobs_of(row, capability, page_size, *, targets=True):
    """What a row of the table launches at its largest dim, the keys in two parts."""
    dtype = torch.bfloat16 if row["item_bytes"] == 2 else torch.float32
    q, k, v, out = (torch.empty(BATCH * NEW, HEADS, row["dim"], dtype=dtype, device="meta") for _ in range(4))
    pool = torch.empty(PAGES, 2, page_size, HEADS, row["dim"], dtype=dtype, device="meta")
    table = {
        name: torch.empty(length, dtype=torch.int32, device="meta")
        for name, length in (("offsets", BATCH + 1), ("cached", BATCH), ("indptr", BATCH + 1), ("indices", PAGES))
    }
    step = Step(**table, num_targets=table["cached"] if targets else None, max_new=NEW, max_cached=4096)
    config, shape = PagedConfig.parse(row["config"]), forward.workspace_shape(q, 2)
    with (
        recorded(portable, *KERNELS[::2], capability=capability) as own,
        recorded(parts, KERNELS[1], capability=capability) as sums,
    ):
        forward.launch_forward(
            q,
            k,
            v,
            pool,
            out,
            step,
            config,
            alpha=0.1,
            scaling_seqlen=1000,
            splits=2,
            workspace=torch.empty(shape, dtype=torch.float32, device="meta"),
        )
        with stood_in_for(Card((capability // 10, 0), 132)):
            portable.launch_append(k, v, pool, step)
            portable.launch_append(k, v, pool, step, silu_with=q)
    jobs = [own[0], sums[0], *own[1:]]
    label = f"{capability} {row['item_bytes']}-byte d{row['dim']} p{page_size}{' targets' * targets}"
    return [replace(job, label=f"{job.label} {label}") for job in jobs[: 4 if row["dim"] == 256 else 1]]


def jobs_to_hold(*, oldest):
    """Every default with every page it is for; the oldest Triton is spared fp32 and small heads, and but for
    `make kernels` so are other cards than sm_90."""
    jobs = []
    for row in TABLE.rows("forward"):
        single = row["item_bytes"] == 4
        # fp32 over 128 dims spills: three TF32 products for one are more than the registers hold.
        spared = (single or row["dim"] < 256) if oldest else (single and row["dim"] > 128)
        cards = [] if spared else row.get("cards", [8])
        for card in cards if cards != [0] else []:
            if card != 9 and not EVERY and (single or row["dim"] < 256):
                continue
            for page_size in PAGE_SIZES:
                wanted = default_config((card, 0), row["item_bytes"], row["dim"], page_size).short == row["config"]
                # A page of twice the tile is read as one of the tile's size is.
                if wanted and page_size == row.get("page_size", 32):
                    jobs += jobs_of(row, card * 10, page_size, targets=row["dim"] != 128 or card != 9)
    return jobs


def faults(job, one):
    """What of a compiled kernel is not as it should be."""
    wrong = [f"{one.spills} spills"] * (one.spills > 0) + ["serialized"] * one.serialized
    if job.kernel.endswith("hstu_paged_forward"):
        wrong += ["no tensor core"] * (one.tensor_core == 0)
        if job.capability == 90 and "2-byte" in job.label:
            wrong += ["products of single warps"] * (one.sass["HGMMA"] != one.tensor_core)
            wrong += ["TMA"] * ((one.sass.get("UTMALDG", 0) > 0) != job.constants["META"]["TMA"])
    room = {80: 163, 90: 227, 100: 227}[job.capability] * 1024
    return wrong + [f"{one.shared} bytes of shared memory"] * (one.shared > room)


# No fixture: each process that runs tests of this file would compile all of it.
@pytest.mark.parametrize(("version", "capability"), [("pinned", 80), ("pinned", 90), ("pinned", 100), ("3.6", 90)])
def test_the_defaults_spill_nothing_and_use_the_tensor_cores(version, capability):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    jobs = [job for job in jobs_to_hold(oldest=version != "pinned") if job.capability == capability]
    found = compile_with({version: tritons()[version]}, jobs)[version]
    assert {job.kernel.split(":")[1] for job in jobs} == set(KERNELS)
    assert not {job.label: wrong for job in jobs if (wrong := faults(job, found[job.label]))}


def test_another_batch_or_length_compiles_nothing_anew():
    """What a kernel is compiled for is its constants, and how pointers and strides are aligned."""
    for kernel in (portable.hstu_paged_forward, parts.hstu_sum_parts, portable.hstu_paged_append):
        counted = {
            parameter.name
            for parameter in kernel.params
            if not parameter.is_constexpr
            and not re.search("_ptr$|_desc$|^strides$|^half_alpha$|^scale$", parameter.name)
        }
        assert counted
        assert all(one.do_not_specialize for one in kernel.params if one.name in counted), kernel.__name__


def test_every_card_precision_dim_and_page_has_a_default():
    for major in (0, 8, 9, 10, 12):
        for item_bytes in (2, 4):
            for dim in (1, 64, 65, 256):
                for page_size in PAGE_SIZES:
                    found = default_config((major, 0), item_bytes, dim, page_size)
                    assert (found.silu == "exp") == (major == 0 or item_bytes == 4)
                    assert page_size % found.block_n == 0
