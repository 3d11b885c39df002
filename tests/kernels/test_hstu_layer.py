"""Rows of an HSTU layer in one launch, in Triton's interpreter, against the same in fp64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from torch.nn.functional import layer_norm, silu

from .interpreter import interpreted

EPS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-11, torch.float32: 2.0**-23}
"""Of a result: half a step; a whole one of bf16, which the interpreter does not round to but cut off."""
API = "attnbench.kernels.hstu.layer.api"
ROWS = (0, 1, 5)


@pytest.fixture(scope="module")
def api():
    with interpreted(API) as (found,):
        yield found


def drawn(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(dtype)


def held(found, truth, dtype):
    """One rounding of the result, and a few of fp32 inside."""
    assert found.dtype == dtype
    off = (found.double() - truth).abs()
    assert (off <= EPS[dtype] * truth.abs() + 64 * EPS[torch.float32] * truth.abs().max().clamp(min=1)).all()


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("dim", [1, 16, 63, 127, 129, 1000, 1024])
def test_a_row_with_its_position(api, dim, dtype):
    table, places = drawn(50, dim, dtype=dtype), drawn(9, dim, dtype=dtype, seed=1)
    for rows in ROWS:
        ids, positions = torch.randint(0, 50, (rows,), dtype=torch.int32), torch.arange(rows, dtype=torch.int32) + 4
        found = api.embed(ids, positions, table, places, scale=dim**0.5)
        assert found.shape == (rows, dim)
        if rows:
            held(found, table.double()[ids.long()] * dim**0.5 + places.double()[positions.long()], dtype)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("dim", [1, 16, 63, 127, 129, 1000, 1024])
def test_attention_is_normalised_and_gated(api, dim, dtype, whole):
    weight, bias = drawn(dim, dtype=dtype, seed=2), drawn(dim, dtype=dtype, seed=3)
    for rows in ROWS:
        a = drawn(rows, dim, dtype=dtype, seed=4) * 3 + 1
        u = drawn(rows, 3 * dim, dtype=dtype, seed=5)[:, dim : 2 * dim]
        found = api.gate(a, u, weight, bias, eps=1e-5, whole=whole)
        assert found.shape == (rows, dim if whole else 3 * dim)
        if rows:
            normed = layer_norm(a.double(), (dim,), weight.double(), bias.double(), 1e-5)
            s = silu(u.double())
            held(found, normed * s if whole else torch.cat([s, a.double(), normed * s], dim=1), dtype)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("count", [0, 3, 5])
def test_rows_that_attention_has_not_written_stay_numbers(api, count, whole):
    weight, bias, u = (drawn(*shape, dtype=torch.float16, seed=2) for shape in ((40,), (40,), (5, 40)))
    a = drawn(5, 40, dtype=torch.float16, seed=3)
    wanted = api.gate(a, u, weight, bias, eps=1e-5, whole=whole)
    a[count:] = torch.nan
    found = api.gate(a, u, weight, bias, eps=1e-5, whole=whole, count=torch.tensor([count], dtype=torch.int32))
    assert torch.equal(found[:count], wanted[:count])
    assert (found[count:, -40:] == 0).all()
    assert found.isfinite().all()


def shuffled(sums):
    """Parts as the kernels for Hopper write them: of sixteen columns 8 k + 2 i + j is column 4 i + 2 k + j."""
    return sums.unflatten(3, (-1, 2, 4, 2)).transpose(4, 5).flatten(3).contiguous()


@pytest.mark.parametrize("hopper", [True, False])
@pytest.mark.parametrize(("parts", "heads", "dim"), [(2, 4, 16), (11, 3, 32), (17, 1, 64), (33, 2, 16)])
@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_parts_are_added_up_to_the_bits_of_their_sum(dtype, parts, heads, dim, hopper):
    """As by the sum's kernel and the gate of what it rounds; what nobody wrote reaches no other row."""
    with interpreted(API, "attnbench.kernels.hstu.dense.parts", "attnbench.kernels.hstu.arguments") as found:
        api, dense, arguments = found
        sums = drawn(5, parts, heads, dim, dtype=torch.float32)
        u, weight, bias = (
            drawn(*shape, dtype=dtype, seed=2) for shape in ((5, heads * dim), (heads * dim,), (heads * dim,))
        )
        a = torch.empty(5, heads, dim, dtype=dtype)
        dense.launch_sum(sums, a, 0.37, hopper=False)
        given = arguments.Parts(shuffled(sums) if hopper else sums, 0.37, hopper)
        given.sums[4] = torch.nan
        for whole in (True, False):
            named = {"eps": 1e-5, "whole": whole, "count": torch.tensor([4], dtype=torch.int32)}
            wanted = api.gate(a.flatten(1), u, weight, bias, **named)
            assert torch.equal(api.gate(given, u, weight, bias, **named), wanted)
            assert wanted[:4].abs().sum() > 0
        for wrong, said in (
            (given._replace(sums=sums.half()), r"hstu_gate: a.sums=torch.float16\[5.*\] are no parts; float32 \[rows"),
            (given._replace(sums=sums[:, :, :, : dim // 2].contiguous()), "hstu_gate: u.shape=.* does not fit"),
            (given._replace(sums=sums[:4]), "hstu_gate: u.shape=5 does not fit; 4"),
        ):
            with pytest.raises(ValueError, match=said):
                api.gate(wrong, u, weight, bias, **named)


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("dim", [1, 63, 129, 1024])
def test_rows_are_normalised(api, dim, dtype):
    weight, bias = drawn(dim, dtype=dtype, seed=2), drawn(dim, dtype=dtype, seed=3)
    for rows in ROWS:
        x = drawn(rows, dim, dtype=dtype, seed=4) * 3 + 1
        found = api.norm(x, weight, bias, eps=1e-5)
        assert found.shape == x.shape
        if rows:
            held(found, layer_norm(x.double(), (dim,), weight.double(), bias.double(), 1e-5), dtype)


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("columns", [1, 63, 1024, 2100])
def test_silu_changes_the_columns_it_is_given_and_no_other(api, columns, dtype):
    for rows in ROWS:
        whole = drawn(rows, columns + 5, dtype=dtype) * 4
        before = whole.clone()
        found = api.silu(whole[:, 2 : 2 + columns])
        assert found.data_ptr() == whole[:, 2 : 2 + columns].data_ptr()
        if rows:
            held(found, silu(before[:, 2 : 2 + columns].double()), dtype)
        assert torch.equal(whole[:, :2], before[:, :2])
        assert torch.equal(whole[:, 2 + columns :], before[:, 2 + columns :])


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("dim", [1, 63, 129, 1024])
def test_picked_rows_have_length_one(api, dim, dtype):
    x = drawn(7, dim, dtype=dtype)
    x[3] = 0
    for rows in ([], [6], [3, 0, 3, 5]):
        found = api.pick(x, torch.tensor(rows, dtype=torch.int32), eps=1e-6)
        assert found.shape == (len(rows), dim)
        if rows:
            picked = x.double()[rows]
            held(found, picked / picked.norm(dim=1, keepdim=True).clamp(min=1e-6), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)  # the interpreter multiplies no bf16
@pytest.mark.parametrize(("towers", "before", "after"), [(3, 128, 10), (3, 10, 1), (1, 300, 40), (2, 1, 17)])
def test_towers_multiply_what_is_positive(api, towers, before, after, dtype):
    weight, bias = drawn(towers, after, before, dtype=dtype), drawn(towers, after, dtype=dtype, seed=1)
    for rows in (0, 1, 37):
        x = drawn(rows, towers * before, dtype=dtype, seed=2)
        found = api.tower(x, weight, bias)
        assert found.shape == (rows, towers * after)
        if rows:
            seen = x.double().relu().unflatten(1, (towers, before))
            held(found, (torch.einsum("rti,toi->rto", seen, weight.double()) + bias.double()).flatten(1), dtype)
            x[0, 0] = torch.nan
            assert api.tower(x, weight, bias).isnan().sum() == after


def test_what_cannot_be_used_is_named(api):
    x, rows = torch.ones(3, 4), torch.zeros(3, dtype=torch.int32)
    for call, said in (
        (lambda: api.pick(x, rows.long()), r"hstu_pick: rows=torch.int64\[3\] are no indices; int32 in one dim"),
        (lambda: api.pick(x.double(), rows), "hstu_pick: x.dtype=torch.float64 does not fit; bfloat16"),
        (lambda: api.pick(x.T, rows), r"hstu_pick: x.stride=\(1, 4\) has gaps; rows one after another"),
        (lambda: api.pick(torch.ones(2, 2, 2), rows), r"hstu_pick: x.shape=\(2, 2, 2\) does not fit; rows of 1 to"),
        (lambda: api.embed(rows, rows[:2], x, x, scale=1), "hstu_embed: positions.shape=2 does not fit; 3"),
        (lambda: api.embed(rows, rows, x, x[:, :2].clone(), scale=1), "hstu_embed: places.shape=2 does not fit; 4"),
        (lambda: api.gate(x, x, x[0], x[0], eps=1, whole=True, count=rows), "hstu_gate: count.shape=3 does not fit; 1"),
        (lambda: api.norm(x, x[0, :2], x[0], eps=1), "hstu_norm: weight.shape=2 does not fit; 4"),
        (lambda: api.silu(x.T), "hstu_silu: x.stride=.* has gaps"),
        (
            lambda: api.silu(x[:1].expand(3, 4)),
            r"hstu_silu: x.stride=\(0, 1\) has overlapping rows; rows that do not overlap",
        ),
        (lambda: api.tower(x, x, x), r"hstu_tower: weight.shape=\(3, 4\) does not fit; \[towers, outputs, inputs\]"),
        (lambda: api.tower(x, torch.ones(2, 3, 4), x), "hstu_tower: x.shape=4 does not fit; 8"),
        (lambda: api.tower(x, torch.ones(1, 3, 4), x), r"hstu_tower: bias.shape=\(3, 4\) does not fit; \(1, 3\)"),
        (lambda: api.tower(x, None, x), "hstu_tower: weight=None is of type NoneType; a tensor"),
        (lambda: api.silu(3), "hstu_silu: x=3 is of type int; a tensor"),
        (lambda: api.norm(x, None, x[0], eps=1), "hstu_norm: weight=None is of type NoneType; a tensor"),
        (lambda: api.norm(x, x[0], x[0], eps=float("nan")), "hstu_norm: eps=nan cannot be used; a finite number from"),
        (lambda: api.pick(x, rows, eps=-1), "hstu_pick: eps=-1.0 cannot be used; a finite number from 0"),
        (lambda: api.embed(rows, rows, x, x, scale="1"), "hstu_embed: scale='1' cannot be used; a finite number"),
        (lambda: api.gate(x, x[:2], x[0], x[0], eps=1, whole=True), "hstu_gate: u.shape=2 does not fit; 3"),
        (lambda: api.gate(x, x, x[0], x[0].half(), eps=1, whole=True), "hstu_gate: bias.dtype=torch.float16 does not"),
    ):
        with pytest.raises(ValueError, match=said) as refused:
            call()
        assert "\n" not in str(refused.value)
