"""The shipped defaults of the dense HSTU kernels, compiled for the cards they are for: nothing spills, and the products
are the tensor cores'."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.dense import api as dense
from attnbench.kernels.hstu.dense import backward as hstu_dense_backward
from attnbench.kernels.hstu.dense import forward as hstu_dense_forward
from attnbench.kernels.hstu.dense.configs import TABLE, ColumnConfig, ForwardConfig, RowConfig

from .aot import EVERY, NO_OLDEST, compile_with, recorded, tritons

KERNELS = ("hstu_dense_backward_columns", "hstu_dense_backward_rows", "hstu_dense_backward_round")
ATOMS = ("RED", "REDG", "ATOM", "ATOMG", "UTMAREDG")
BATCH, HEADS, SEQLEN = 4, 4, 1024


def problem(*, every_mask):
    def whole(length):
        return torch.empty(length, dtype=torch.int64, device="meta")

    return dense.Problem(
        offsets=whole(BATCH + 1),
        offsets_q=whole(BATCH + 1) if every_mask else None,
        num_targets=whole(BATCH) if every_mask else None,
        max_seqlen=SEQLEN,
        max_seqlen_q=SEQLEN,
        alpha=0.1,
        scaling_seqlen=SEQLEN,
        causal=True,
        contextual_len=8 if every_mask else 0,
        max_attn_len=100 if every_mask else None,
    )


KINDS = {"forward": ForwardConfig, "rows": RowConfig, "columns": ColumnConfig, "atomic": ColumnConfig}


def jobs_of(kernel, row, capability, *, every_mask=False):
    """What a row of the table launches at its largest dim."""
    dtype = torch.bfloat16 if row["item_bytes"] == 2 else torch.float32
    q, k, v, dout, dq, dk, dv = (
        torch.empty(BATCH * SEQLEN, HEADS, row["dim"], dtype=dtype, device="meta") for _ in range(7)
    )
    given, config = problem(every_mask=every_mask), KINDS[kernel].parse(row["config"])
    if kernel == "atomic":
        config = replace(config, atomic=True)
    with (
        recorded(hstu_dense_forward, "hstu_dense_forward", capability=capability) as forward,
        recorded(hstu_dense_backward, *KERNELS, capability=capability) as backward,
    ):
        if kernel == "forward":
            dense.launch_forward(q, k, v, dout, given, config)
        elif kernel == "rows":
            columns = dense.ColumnConfig(block_m=16, block_n=16, warps=4, stages=1)
            dense.launch_backward(
                q, k, v, dout, dq, dk, dv, given, dense.BackwardConfig(columns=columns, rows=config), None
            )
        else:
            rows = None if config.atomic else dense.RowConfig(block_m=16, block_n=16, warps=4, stages=1)
            dense.launch_backward(
                q,
                k,
                v,
                dout,
                dq,
                dk,
                dv,
                given,
                dense.BackwardConfig(columns=config, rows=rows),
                torch.empty(q.shape, device="meta"),
            )
    wanted = {"forward": "hstu_dense_forward", "rows": KERNELS[1]}.get(kernel, KERNELS[0])
    jobs = [job for job in (*forward, *backward) if job.kernel.endswith(f":{wanted}")]
    return [
        replace(
            job,
            label=f"{kernel} {capability} {row['item_bytes']}-byte d{row['dim']} "
            f"{job.constants['META'].get('PART', '')}{' every mask' * every_mask}",
        )
        for job in jobs
    ]


def jobs_to_hold(kernel, *, oldest):
    """Every default of a kernel on sm_90 by the pinned Triton; by the oldest, and on other cards, one of each kernel.

    A default's shape presses on registers and shared memory with either; what one Triton alone breaks (a product that
    is not the tensor cores', a wait too many) it breaks at every shape of a card.  So the largest of a card stands for
    the others, which `make kernels` compiles too.
    """
    jobs = []
    # Off sm_90 the sums in columns are compiled with their atomics, which take more, where the configuration is one.
    atomic = [{**row, "cards": row.get("cards")} for row in TABLE.rows("atomic")]
    for row in TABLE.rows(kernel):
        if kernel == "columns" and row.get("cards") != [9] and {**row, "cards": row.get("cards")} in atomic:
            continue
        # fp32 over 128 dims spills: three TF32 products for one are more than the registers hold.
        if row["item_bytes"] == 4 and (row["dim"] > 128 or oldest):
            continue
        largest = row["item_bytes"] == 2 and row["dim"] == (128 if oldest else 256)
        in_fp32 = kernel == "forward" and row["item_bytes"] == 4 and row["dim"] == 64
        for card in row.get("cards", [8]):
            if not (EVERY or largest or in_fp32 or (card == 9 and not oldest)):
                continue
            if card == 9 or (card and not oldest):
                jobs += jobs_of(kernel, row, card * 10)
        if row.get("cards") == [9] and row["dim"] == 128 and kernel != "atomic" and not oldest:
            jobs += jobs_of(kernel, row, 90, every_mask=True)
    return jobs


def faults(job, one):
    """What of a compiled default is not as it should be."""
    wrong = [f"{one.spills} spills"] * (one.spills > 0) + ["serialized"] * one.serialized
    wrong += ["no tensor core"] * (one.tensor_core == 0)
    if job.capability == 90 and "2-byte" in job.label:
        wrong += ["products of single warps"] * (one.sass["HGMMA"] != one.tensor_core)
        wrong += ["TMA"] * ((one.sass.get("UTMALDG", 0) > 0) != job.constants["META"]["TMA"])
    room = {80: 163, 90: 227, 100: 227}[job.capability] * 1024
    wrong += [f"{one.shared} bytes of shared memory"] * (one.shared > room)
    adds = any(one.sass.get(name, 0) for name in ATOMS)
    return wrong + ["atomics"] * (adds != ("atomic" in job.label and " dv" not in job.label))


# No fixture: each process that runs tests of this file would compile all of it.
@pytest.mark.parametrize("version", ["pinned", "3.6"])
@pytest.mark.parametrize("kernel", ["forward", "rows", "columns", "atomic"])
def test_the_defaults_spill_nothing_and_use_the_tensor_cores(kernel, version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    jobs = jobs_to_hold(kernel, oldest=version != "pinned")
    found = compile_with({version: tritons()[version]}, jobs)[version]
    assert {job.capability for job in jobs} == ({80, 90, 100} if version == "pinned" else {90})
    assert not {job.label: wrong for job in jobs if (wrong := faults(job, found[job.label]))}


def test_another_batch_or_length_compiles_nothing_anew():
    """What a kernel is compiled for is its constants, and how pointers and strides are aligned."""
    for kernel in (hstu_dense_forward.hstu_dense_forward, *(getattr(hstu_dense_backward, name) for name in KERNELS)):
        counted = {
            parameter.name
            for parameter in kernel.params
            if not parameter.is_constexpr
            and not re.search("_ptr$|_desc$|^sequences$|strides$|^half_alpha$|_?scale$", parameter.name)
        }
        assert counted
        assert all(one.do_not_specialize for one in kernel.params if one.name in counted), kernel.__name__


def test_every_card_precision_dim_and_length_has_a_default():
    for major in (0, 8, 9, 10, 12):
        for item_bytes in (2, 4):
            for dim in (1, 64, 65, 256):
                for deterministic in (True, False):
                    given = ((major, 0), item_bytes, dim, 1 << 20)
                    backward = dense.backward_config(*given, deterministic=deterministic)
                    assert backward.deterministic == deterministic
                    assert (backward.rows is None) != deterministic
                    assert (dense.forward_config(*given).silu == "exp") == (major == 0 or item_bytes == 4)


def test_a_slope_in_half_precision_is_worked_out_by_an_exponential(monkeypatch):
    """Its error with the tanh instruction grows with the score: 7 times the reference's at scores of 10."""
    monkeypatch.setattr("attnbench.kernels.hstu.dense.calls._capability", lambda x: (9, 0))
    for dtype, silu in ((torch.float16, "exp"), (torch.bfloat16, "tanh")):
        x = torch.empty(8, 2, 128, dtype=dtype, device="meta")
        for deterministic in (True, False):
            found = dense.default_backward(x, x, x, 8, deterministic=deterministic)
            assert {one.silu for one in (found.columns, found.rows) if one} == {silu}
        assert dense.default_forward(x, x, x, 8).silu == "tanh"
