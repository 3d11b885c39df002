"""Outputs over parts of the keys merged, in Triton's interpreter and compiled ahead of time."""

from __future__ import annotations

import pytest
import torch

from attnbench.parallel.merge import merge

from .aot import NO_OLDEST, Job, compile_with, tritons
from .interpreter import interpreted


@pytest.fixture(scope="module")
def merge_outputs():
    with interpreted("attnbench.kernels.flash.merge") as (module,):
        yield module.merge_outputs


def attention(q, k, v):
    """out [T, H, D] and lse [H, T] in fp64, of all keys."""
    scores = q.transpose(0, 1).double() @ k.transpose(0, 1).double().mT
    return (scores.softmax(-1) @ v.transpose(0, 1).double()).transpose(0, 1), scores.logsumexp(-1)


@pytest.mark.parametrize("merged", ["kernel", "torch"])
@pytest.mark.parametrize(("rows", "heads", "dim"), [(1, 1, 16), (63, 3, 40), (129, 2, 128)])
def test_parts_over_some_keys_give_what_all_keys_give(merge_outputs, merged, rows, heads, dim):
    torch.manual_seed(rows)
    q, k, v = (torch.randn(count, heads, dim) / dim**0.25 for count in (rows, 77, 77))
    wanted, wanted_lse = attention(q, k, v)
    out, lse = (x.float() for x in attention(q, k[:30], v[:30]))
    # Rows of a wider tensor, as a view of some queries is.
    within = torch.randn(heads, rows + 9)
    lse = within[:, 4 : 4 + rows].copy_(lse)
    out = out.contiguous()
    part, part_lse = (x.float() for x in attention(q, k[30:], v[30:]))
    (merge_outputs if merged == "kernel" else merge)(out, lse, part.contiguous(), part_lse.contiguous())
    assert (out - wanted).abs().max() < 1e-5
    assert (lse - wanted_lse).abs().max() < 1e-5


def test_the_stride_of_a_single_row_or_head_does_not_count(merge_outputs):
    out, part = torch.zeros(1, 2, 16), torch.ones(1, 2, 16)
    lse, part_lse = (torch.zeros(1, 2).T for _ in range(2))
    assert lse.stride() == (1, 2)
    merge_outputs(out, lse, part, part_lse)
    assert torch.equal(out, torch.full((1, 2, 16), 0.5))
    merge_outputs(torch.zeros(3, 1, 16), torch.zeros(1, 3), torch.zeros(3, 2, 16)[:, :1], torch.zeros(1, 3))


@pytest.mark.parametrize("merged", ["kernel", "torch"])
def test_a_query_that_saw_no_key_takes_the_other_side_or_nothing(merge_outputs, merged):
    out, part = torch.zeros(3, 1, 16), torch.ones(3, 1, 16)
    lse = torch.tensor([[-torch.inf, 2.0, -torch.inf]])
    part_lse = torch.tensor([[1.0, -torch.inf, -torch.inf]])
    (merge_outputs if merged == "kernel" else merge)(out, lse, part, part_lse)
    assert out[:, 0, 0].tolist() == [1.0, 0.0, 0.0]
    assert lse.tolist() == [[1.0, 2.0, -torch.inf]]


@pytest.mark.parametrize("merged", ["kernel", "torch"])
def test_no_number_stays_none(merge_outputs, merged):
    """Of a query whose scores are NaN it must not look as if it had seen no key."""
    out, part = torch.full((2, 1, 16), torch.nan), torch.ones(2, 1, 16)
    lse, part_lse = torch.full((1, 2), torch.nan), torch.tensor([[1.0, -torch.inf]])
    (merge_outputs if merged == "kernel" else merge)(out, lse, part, part_lse)
    assert out.isnan().all()
    assert lse.isnan().all()


def test_what_does_not_fit_is_refused(merge_outputs):
    out, lse = torch.zeros(4, 2, 16), torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"merge_outputs: part=\(3, 2, 16\), strides .* does not fit"):
        merge_outputs(out, lse, torch.zeros(3, 2, 16), lse)
    with pytest.raises(ValueError, match=r"merge_outputs: lse=\(2, 4\), strides \(1, 2\) does not fit"):
        merge_outputs(out, lse.mT.contiguous().mT, out, lse)
    with pytest.raises(ValueError, match=r"torch\.float64 does not fit; torch\.float32"):
        merge_outputs(out, lse, out, lse.double())
    merge_outputs(out[:0], lse[:, :0], out[:0], lse[:, :0])


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_it_compiles_without_spills_and_waits_before_it_overwrites_what_other_warps_load(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    job = Job(
        "merge",
        "attnbench.kernels.flash.merge:flash_merge",
        {
            **dict.fromkeys(("out_ptr", "part_ptr"), "*bf16:16"),
            **dict.fromkeys(("lse_ptr", "part_lse_ptr"), "*fp32:16"),
            "rows": "i32",
            **dict.fromkeys(("out_row", "lse_head", "part_row", "part_lse_head"), "i32:16"),
        },
        {"DIM": 128, "BLOCK_DIM": 128, "ROWS": 16},
        capability=90,
        num_warps=4,
    )
    found = compile_with({version: tritons()[version]}, [job])[version]["merge"]
    assert not found.spills
    assert found.sass["BAR"] == 1, found.sass
