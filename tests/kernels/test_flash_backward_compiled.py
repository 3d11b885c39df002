"""The shipped defaults of the flash backward, compiled for the cards they are for: nothing spills, and the products are
the tensor cores'."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash import backward as flash_backward
from attnbench.kernels.flash.config.backward import TABLE, parse_backward
from attnbench.kernels.flash.problem import problem_of

from .aot import NO_OLDEST, compile_with, recorded, tritons

KERNELS = ("flash_backward_columns", "flash_backward_rows", "flash_backward_prepare", "flash_backward_round")
ATOMS = ("RED", "REDG", "ATOM", "ATOMG", "UTMAREDG")
BATCH, HEADS, SEQLEN = 4, 4, 1024


def jobs_of(short, item_bytes, dim, capability, *, every=False, **mask):
    """What a configuration launches, its own kernels and the two small ones; `every`: packed and grouped too."""
    dtype = torch.bfloat16 if item_bytes == 2 else torch.float32
    heads_kv, rows = (HEADS // 2 if every else HEADS), ((BATCH * SEQLEN,) if every else (BATCH, SEQLEN))
    q, out, dout, dq = (torch.empty(*rows, HEADS, dim, dtype=dtype, device="meta") for _ in range(4))
    k, v, dk, dv = (torch.empty(*rows, heads_kv, dim, dtype=dtype, device="meta") for _ in range(4))
    offsets = torch.empty(BATCH + 1, dtype=torch.int32, device="meta") if every else None
    problem = problem_of(q, k, v, **mask, cu_seqlens_q=offsets, max_seqlen_q=SEQLEN if every else None)
    config = parse_backward(short)
    lse = torch.empty(1, HEADS, BATCH * SEQLEN, device="meta")
    with recorded(flash_backward, *KERNELS, capability=capability) as jobs:
        flash_backward.launch_backward(
            q, k, v, out, dout, lse, dq, dk, dv, problem, config, flash_backward.workspace_of(q, problem, config)
        )
    words = f"{capability} {item_bytes}-byte d{dim} {short}{' packed' * every}"
    return [replace(job, label=f"{job.label.split()[0].removeprefix('flash_backward_')} {words}") for job in jobs]


def jobs_to_hold(*, oldest):
    """The kernels of the portable 16-bit defaults, each on the first card it is for; 256 dims not of sm_80.

    The oldest Triton is spared all but the atomics of sm_90.  A deterministic backward's column kernel is that of the
    atomics without its atomics: of 128 dims alone.
    """
    jobs = []
    for row in TABLE.rows("backward"):
        card, dim, short = row.get("cards", [8])[0], row["dim"], row["config"]
        deterministic = parse_backward(short).deterministic
        if card == 0 or row["item_bytes"] > 2 or (card, dim) == (8, 256) or (oldest and card != 9):
            continue
        if parse_backward(short).order == "ws" or (deterministic and (oldest or dim == 64)):
            continue
        wanted = ["rows"] if deterministic else ["columns"]
        if (card, dim) == (9, 128):
            # The small kernels have no cut of their own.
            wanted += ["columns"] if deterministic else ["prepare", "round"]
        jobs += [
            job
            for job in jobs_of(short, row["item_bytes"], dim, card * 10, causal=True, every="packed" in row)
            if job.label.split()[0] in wanted
        ]
    return jobs


def faults(job, one):
    """What of a compiled default is not as it should be."""
    kernel, *words = job.label.split()
    wrong = [f"{one.spills} spills"] * (one.spills > 0)
    if kernel in ("prepare", "round"):
        return wrong
    wrong += ["serialized"] * one.serialized + ["no tensor core"] * (one.tensor_core == 0)
    if job.capability == 90 and "2-byte" in words:
        wrong += ["products of single warps"] * (one.sass["HGMMA"] != one.tensor_core)
        wrong += ["TMA"] * ((one.sass.get("UTMALDG", 0) > 0) != job.constants["META"]["TMA"])
    room = {80: 163, 90: 227, 100: 227}[job.capability] * 1024
    wrong += [f"{one.shared} bytes of shared memory"] * (one.shared > room)
    adds = any(one.sass.get(name, 0) for name in ATOMS)
    return wrong + ["atomics"] * (adds != (kernel == "columns" and "-atomic" in job.label))


# One test compiles all: a fixture would be made anew by each worker that runs tests of this file.
@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_the_defaults_spill_nothing_and_use_the_tensor_cores(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    jobs = jobs_to_hold(oldest=version != "pinned")
    found = compile_with({version: tritons()[version]}, jobs)[version]
    assert {job.capability for job in jobs} == ({80, 90, 100} if version == "pinned" else {90})
    assert not {job.label: wrong for job in jobs if (wrong := faults(job, found[job.label]))}
