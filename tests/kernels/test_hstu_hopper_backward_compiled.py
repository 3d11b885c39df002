"""The Hopper backward of dense HSTU attention, compiled: no spill, and products run beside what lies between them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.dense.backward import workspace_shape
from attnbench.kernels.hstu.dense.configs import HOPPER_SHARED_BYTES, BackwardConfig, hopper_columns_config
from attnbench.kernels.hstu.dense.hopper import backward as hstu_hopper_backward
from attnbench.kernels.hstu.dense.hopper import backward_serial as hstu_hopper_backward_serial
from attnbench.kernels.hstu.dense.hopper import backward_wide as hstu_hopper_backward_wide

from .aot import EVERY, NO_OLDEST, compile_with, recorded, tritons
from .test_hstu_dense_compiled import BATCH, HEADS, SEQLEN, problem

WITHOUT_LAG = ("over 128", "32", "narrow", "carried", "carried, every mask")
WAITS = ("scores", "dO Vᵀ", "dQ and dV", "dK (over 128 dims with the rest of dQ)")
"What a step waits for; with lag the last dQ is waited for after the steps."


def job_of(attn_dim, linear_dim, *, every_mask=False, dtype=torch.bfloat16, **changes):
    """The shipped default, with changes."""
    config = replace(hopper_columns_config((9, 0), 2, attn_dim, linear_dim, SEQLEN), **changes)
    q, k, dq, dk, v, dout, dv = (
        torch.empty(BATCH * SEQLEN, HEADS, dim, dtype=dtype, device="meta") for dim in [attn_dim] * 4 + [linear_dim] * 3
    )
    given = problem(every_mask=every_mask)
    sums = torch.empty(workspace_shape(q, given, BackwardConfig(columns=config, rows=None)), device="meta")
    with (
        recorded(hstu_hopper_backward, "hstu_hopper_backward", capability=90) as jobs,
        recorded(hstu_hopper_backward_wide, "hstu_hopper_backward_wide", capability=90) as over,
        recorded(hstu_hopper_backward_serial, "hstu_hopper_backward_serial", capability=90) as serial,
    ):
        if config.serial:
            hstu_hopper_backward_serial.launch_serial_backward(q, k, v, dout, sums, dq, dk, dv, given, config)
        else:
            hstu_hopper_backward.launch_hopper_backward(q, k, v, dout, sums, dk, dv, given, config)
    return [*jobs, *over, *serial][0]


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_nothing_spills_and_no_product_waits_for_another(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    made = {"128": job_of(128, 128, every_mask=True), "over 128": job_of(256, 256, every_mask=True, sums="staged")}
    made["32"] = job_of(32, 32)
    made["carried"] = job_of(256, 256)
    if version == "3.6":
        made["carried, every mask"] = job_of(256, 256, every_mask=True)
    if version == "3.6" and EVERY:  # what is no default by the quicker one alone
        made |= {"narrow": job_of(32, 128, stages=3), "exponential": job_of(64, 64, dtype=torch.float16, silu="exp")}
    jobs = [replace(job, label=label) for label, job in made.items()]
    found = compile_with({version: tritons()[version]}, jobs)[version]
    for label, one in found.items():
        # With the newer Triton some values that the steps only read, at most 20 registers; carried: outside of the steps.
        limits = {("pinned", "128"): 80, ("3.6", "carried"): 4}
        assert one.spills <= limits.get((version, label), 0), label
        assert (one.early, one.warps) == (0, 12), label
        assert one.tensor_core == one.sass["HGMMA"], label
        assert one.waits == 2 * (len(WAITS) + (label not in WITHOUT_LAG)), label
        carried = label.startswith("carried")
        assert one.sass.get("UTMAREDG", 0) == (0 if carried else 2 if label in ("32", "narrow") else 4), label
        # Of both warpgroups 16 in a step, and 8 after the last.
        assert one.sass.get("REDG", 0) == (48 if carried else 0), label
        assert one.shared <= HOPPER_SHARED_BYTES + 1024, label
        steps = [loop for loop in one.loops if loop["sass"].get("MUFU")]
        assert len(steps) == 2, label
        for loop in steps:
            assert loop["beside"]["MUFU"] == loop["sass"]["MUFU"], label
            assert loop["beside"].get("REDG") == loop["sass"].get("REDG"), label
            assert not loop["sass"].get("STL"), label
            assert loop["sass"].get("LDL", 0) <= (8 if label == "128" and one.spills else 0), label


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_a_serial_reduction_spills_nothing_either(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    made = {"128": job_of(128, 128, serial=True, lag=False), "64": job_of(64, 64, serial=True)}
    if version == "3.6" and EVERY:
        made |= {
            "32": job_of(32, 32, serial=True),
            "every mask": job_of(128, 128, every_mask=True, serial=True, lag=False),
            "exponential": job_of(128, 128, dtype=torch.float16, silu="exp", serial=True, lag=False),
        }
    found = compile_with({version: tritons()[version]}, [replace(job, label=label) for label, job in made.items()])
    for label, one in found[version].items():
        # With the newer Triton a step loads again some values that it only reads.
        assert one.spills <= (40 if (version, label) == ("pinned", "128") else 0), label
        assert one.early == 2  # the producer warp's publications
        assert (one.warps, one.tensor_core) == (12, one.sass["HGMMA"]), label
        lag = label == "64"
        assert one.waits == 2 * (len(WAITS) + lag), label
        assert one.sass["UTMAREDG"] == 2 * (1 + lag), label
        assert one.shared <= HOPPER_SHARED_BYTES + 1024, label
        steps = [loop for loop in one.loops if loop["sass"].get("MUFU")]
        assert len(steps) == 2, label
        for loop in steps:
            assert loop["beside"]["MUFU"] == loop["sass"]["MUFU"], label
            assert not loop["sass"].get("STL"), label
