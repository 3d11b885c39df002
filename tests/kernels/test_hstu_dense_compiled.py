"""The shipped defaults of the dense HSTU kernels, compiled for the cards they are for: nothing spills, and the products
are the tensor cores'."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels import hstu_dense as dense
from attnbench.kernels import hstu_dense_backward, hstu_dense_forward
from attnbench.kernels.hstu_dense_configs import config_of, tuned

from .aot import NO_OLDEST, Job, compile_with, recorded, tritons

KERNELS = ("hstu_dense_backward_columns", "hstu_dense_backward_rows", "hstu_dense_backward_round")
ATOMS = ("RED", "REDG", "ATOM", "ATOMG", "UTMAREDG")
BATCH, HEADS, SEQLEN = 4, 4, 1024


def problem(*, every_mask):
    def whole(length):
        return torch.empty(length, dtype=torch.int64, device="meta")

    return dense.Problem(
        offsets=whole(BATCH + 1), offsets_q=whole(BATCH + 1) if every_mask else None,
        num_targets=whole(BATCH) if every_mask else None, max_seqlen=SEQLEN, max_seqlen_q=SEQLEN, alpha=0.1,
        scaling_seqlen=SEQLEN, causal=True, contextual_len=8 if every_mask else 0,
        max_attn_len=100 if every_mask else None)


def jobs_of(kernel, row, capability, *, every_mask=False):
    """What a row of the table launches at its largest dim."""
    dtype = torch.bfloat16 if row["item_bytes"] == 2 else torch.float32
    q, k, v, dout, dq, dk, dv = (torch.empty(BATCH * SEQLEN, HEADS, row["dim"], dtype=dtype, device="meta")
                                 for _ in range(7))
    given, config = problem(every_mask=every_mask), config_of(kernel, row)
    with recorded(hstu_dense_forward, "hstu_dense_forward", capability=capability) as forward, \
            recorded(hstu_dense_backward, *KERNELS, capability=capability) as backward:
        if kernel == "forward":
            dense.launch_forward(q, k, v, dout, given, config)
        elif kernel == "rows":
            columns = dense.ColumnConfig(block_m=16, block_n=16, warps=4, stages=1)
            dense.launch_backward(q, k, v, dout, dq, dk, dv, given, dense.BackwardConfig(columns=columns, rows=config),
                                  None)
        else:
            rows = None if config.atomic else dense.RowConfig(block_m=16, block_n=16, warps=4, stages=1)
            dense.launch_backward(q, k, v, dout, dq, dk, dv, given, dense.BackwardConfig(columns=config, rows=rows),
                                  torch.empty(q.shape, device="meta"))
    wanted = {"forward": "hstu_dense_forward", "rows": KERNELS[1]}.get(kernel, KERNELS[0])
    jobs = [job for job in (*forward, *backward) if job.kernel.endswith(f":{wanted}")]
    return [replace(job, label=f"{kernel} {capability} {row['item_bytes']}-byte d{row['dim']} "
                               f"{job.constants.get('PART', '')}{' every mask' * every_mask}") for job in jobs]


def all_jobs() -> list[Job]:
    jobs = []
    for kernel in ("forward", "rows", "columns", "atomic"):
        for row in tuned(kernel):
            # fp32 over 128 dims spills: three TF32 products for one are more than the registers hold.
            cards = [] if row["item_bytes"] == 4 and row["dim"] > 128 else row.get("cards", [8])
            for card in cards if cards != [0] else []:
                jobs += jobs_of(kernel, row, card * 10)
        (hopper, *_) = (row for row in tuned(kernel) if row.get("cards") == [9])
        jobs += jobs_of(kernel, hopper, 90, every_mask=True) if kernel != "atomic" else []
    return jobs


JOBS = {job.label: job for job in all_jobs()}
ALIKE = {label: job for label, job in JOBS.items() if "4-byte" not in label and "every" not in label}
"What the oldest Triton compiles too: the rest takes it as long again and is of no speed bar."
EACH = [*(("pinned", label) for label in JOBS), *(("3.6", label) for label in ALIKE)]


@pytest.fixture(scope="module")
def found():
    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(lambda name: compile_with({name: tritons()[name]}, list(
            (JOBS if name == "pinned" else ALIKE).values()))[name], tritons())
    return dict(zip(tritons(), answers, strict=True))


@pytest.mark.parametrize(("version", "label"), EACH)
def test_a_default_spills_nothing_and_uses_the_tensor_cores(found, version, label):
    if version not in found:
        pytest.skip(NO_OLDEST)
    one, job = found[version][label], JOBS[label]
    assert one.spills == 0
    assert one.tensor_core > 0
    assert not one.serialized
    if job.capability == 90 and "2-byte" in label:
        assert one.sass["HGMMA"] == one.tensor_core
        assert (one.sass.get("UTMALDG", 0) > 0) == job.constants["TMA"]
    assert one.shared <= {80: 163, 90: 227, 100: 227}[job.capability] * 1024


@pytest.mark.parametrize("label", JOBS)
def test_only_what_says_so_adds_by_atomics(found, label):
    adds = any(found["pinned"][label].sass.get(name, 0) for name in ATOMS)
    assert adds == ("atomic" in label and " dv" not in label)


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
