"""Paged HSTU attention and append in Triton's interpreter, against the answer written out in fp64."""

from __future__ import annotations

import pytest
import torch

from . import paged_step
from .interpreter import interpreted
from .paged_step import make_step, plain

pytest.importorskip("triton")

ALPHA, SCALE = 0.3, 37


@pytest.fixture(scope="module")
def paged():
    with interpreted("attnbench.kernels.hstu.paged.api") as (module,):
        yield module


def held(step, found):
    paged_step.held(step, found, alpha=ALPHA, scaling_seqlen=SCALE)


def run(paged, step, *, splits=1, **cut):
    config = paged.PagedConfig(**{"block_m": 16, "block_n": 16, "warps": 4, "stages": 1, "silu": "exp"} | cut)
    return paged.hstu_paged_attention(
        step.q,
        step.k,
        step.v,
        step.pool,
        paged.Step(**step.table),
        alpha=ALPHA,
        scaling_seqlen=SCALE,
        splits=splits,
        config=config,
        validate=True,
    )


CASES = {
    "one-of-each": [(0, 5, 3), (31, 1, 2), (32, 1, 1), (33, 0, 4)],
    "around-pages": [(63, 2, 0), (64, 1, 5), (65, 33, 0)],
    "one-token": [(40, 1, 0)],
    "one-candidate": [(40, 0, 1)],
    "nothing-cached": [(0, 33, 20)],
    "nothing-at-all": [(0, 0, 0), (5, 0, 2), (0, 0, 1)],
    "cached-only": [(32, 0, 0), (3, 1, 1)],
    "many-candidates": [(35, 3, 45)],
    "history-over-tiles": [(17, 50, 7)],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "cut", [{}, {"block_n": 32, "order": "ahead"}, {"block_m": 32, "new_stages": 2}], ids=["small", "ahead", "tall"]
)
def test_right_around_pages_and_tiles(paged, name, cut):
    step = make_step(CASES[name], seed=len(name))
    held(step, run(paged, step, **cut))


@pytest.mark.parametrize(("splits", "order"), [(2, "plain"), (3, "ahead"), (7, "plain"), (12, "ahead")])
def test_split_keys_add_up_to_the_same(paged, splits, order):
    """Shares end inside each kind of tile, and some are empty."""
    step = make_step([(70, 18, 5), (5, 0, 3), (0, 0, 0)], seed=splits, heads=2)
    found = run(paged, step, splits=splits, order=order)
    held(step, found)
    assert torch.equal(found, run(paged, step, splits=splits, order=order))


@pytest.mark.parametrize("page_size", [32, 64, 128])
@pytest.mark.parametrize("loads", ["pointer", "tma"])
def test_every_page_size_by_pointers_and_descriptors(paged, page_size, loads):
    step = make_step([(page_size - 1, 1, 1), (page_size + 1, 2, 0), (2 * page_size, 0, 3)], page_size=page_size, seed=4)
    for cut in ({"block_n": 32}, {"block_n": page_size, "block_m": 32, "order": "ahead", "splits": 2}):
        held(step, run(paged, step, loads=loads, **cut))


@pytest.mark.parametrize("loads", ["pointer", "tma"])
def test_a_pool_without_pages_is_read_by_nobody(paged, loads):
    step = make_step([(0, 5, 3), (0, 0, 2)], seed=6)
    step.pool = step.pool[:0]
    step.table |= {"indptr": torch.zeros_like(step.table["indptr"]), "indices": step.table["indices"][:0]}
    held(step, run(paged, step, loads=loads))


@pytest.mark.parametrize("dim", [1, 24, 40])
def test_odd_dims(paged, dim):
    step = make_step([(35, 3, 2), (0, 4, 0)], dim=dim, seed=dim)
    held(step, run(paged, step))
    held(step, run(paged, step, block_n=32, splits=2, loads="tma"))


@pytest.mark.parametrize("cut", [{}, {"order": "ahead", "splits": 3}])
def test_half_precision(paged, cut):
    step = make_step([(70, 5, 9), (31, 2, 1)], dtype=torch.float16, dim=32, seed=7)
    held(step, run(paged, step, **cut))


def test_defaults_and_the_number_of_parts(paged):
    """A long cache and few rows are split, a full card is not; bounds alone decide."""
    config = paged.PagedConfig(block_m=128, block_n=64, warps=8, stages=2)
    for programs, keys, wanted in (
        (12, 4352, 11),
        (132, 4352, 1),
        (66, 4352, 2),
        (12, 300, 1),
        (1, 100_000, 132),
        (0, 0, 1),
        (400, 4352, 1),
    ):
        assert config.splits(programs, keys, 132) == wanted
    step = make_step([(200, 5, 3)], seed=9)
    found = paged.hstu_paged_attention(
        step.q, step.k, step.v, step.pool, paged.Step(**step.table), alpha=ALPHA, scaling_seqlen=SCALE
    )
    held(step, found)
    loose = step.table | {"max_new": 90, "max_cached": 4000}
    held(
        step,
        paged.hstu_paged_attention(
            step.q, step.k, step.v, step.pool, paged.Step(**loose), alpha=ALPHA, scaling_seqlen=SCALE
        ),
    )
    assert paged.splits_of(step.q, paged.Step(**step.table), config) == 1
    no_targets = make_step([(20, 5, 0)], seed=10)
    held(
        no_targets,
        paged.hstu_paged_attention(
            no_targets.q,
            no_targets.k,
            no_targets.v,
            no_targets.pool,
            paged.Step(**no_targets.table | {"num_targets": None}),
            alpha=ALPHA,
            scaling_seqlen=SCALE,
        ),
    )
    usual = make_step([(20, 5, 2)], seed=11, dim=16)
    assert torch.equal(
        *(
            paged.hstu_paged_attention(
                usual.q, usual.k, usual.v, usual.pool, paged.Step(**usual.table), alpha=alpha, scaling_seqlen=SCALE
            )
            for alpha in (None, 0.25)
        )
    )


def test_a_candidate_and_a_neighbour_change_nobody_elses_output(paged):
    step = make_step([(37, 3, 5), (20, 2, 4)], seed=12)
    before = run(paged, step)
    step.q[5], step.k[5], step.v[5] = 3.0, 3.0, 3.0  # a candidate of the first sequence
    after = run(paged, step)
    same = [row for row in range(14) if row != 5]
    assert torch.equal(before[same], after[same])
    assert not torch.equal(before[5], after[5])
    alone = make_step([(37, 3, 5)], seed=12)
    alone.q, alone.k, alone.v, alone.pool = step.q[:8], step.k[:8], step.v[:8], step.pool
    alone.table["indices"] = step.table["indices"][:2]
    assert torch.equal(run(paged, alone), after[:8])


@pytest.mark.parametrize("page_size", [32, 64])
@pytest.mark.parametrize("targets", [True, False])
def test_append_writes_the_new_history_and_nothing_else(paged, page_size, targets):
    lengths = [(0, 5, 3), (page_size - 1, 2, 1), (page_size, 1, 0), (3, 0, 4), (10, 2 * page_size, 2)]
    lengths = lengths if targets else [(cached, history, 0) for cached, history, _ in lengths]
    step = make_step(lengths, page_size=page_size, dim=24, seed=5)
    table = step.table if targets else step.table | {"num_targets": None}
    before = step.pool.clone()
    paged.hstu_paged_append(step.k, step.v, step.pool, paged.Step(**table), validate=True)
    wanted = before.clone()
    for b, (cached, history, _) in enumerate(lengths):
        start = int(step.table["offsets"][b])
        for i in range(history):
            page = step.table["indices"][step.table["indptr"][b] + (cached + i) // page_size]
            wanted[page, 0, (cached + i) % page_size] = step.k[start + i]
            wanted[page, 1, (cached + i) % page_size] = step.v[start + i]
    assert torch.equal(step.pool.nan_to_num(9.0), wanted.nan_to_num(9.0))


@pytest.mark.parametrize("name", ["k", "pool"])
def test_what_is_negated_when_it_is_read_is_not_appended(paged, name):
    step = make_step([(5, 3, 1)], seed=8)
    given = {"k": step.k, "v": step.v, "pool": step.pool}
    with pytest.raises(ValueError, match=r"^a tensor is lazily negated \(Tensor.is_neg\); its resolve_neg\(\)$"):
        paged.hstu_paged_append(**given | {name: torch._neg_view(given[name])}, step=paged.Step(**step.table))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("targets", [True, False])
def test_silu_and_append_in_one_launch_are_the_bits_of_both(targets, dtype):
    """In place, in tensors with gaps; rows of no sequence stay as they are."""
    lengths = [(0, 5, 3), (31, 2, 1), (32, 1, 0), (3, 0, 4), (0, 0, 0), (10, 64, 2)]
    lengths = lengths if targets else [(cached, history, 0) for cached, history, _ in lengths]
    with interpreted("attnbench.kernels.hstu.paged.api", "attnbench.kernels.hstu.layer.api") as (paged, layer):
        step = make_step(lengths, heads=2, dim=24, seed=5, dtype=dtype)
        table = paged.Step(**step.table if targets else step.table | {"num_targets": None})
        count = len(step.q)
        whole = torch.cat([x.flatten(1) for x in (step.q, step.v, step.k)], dim=1)
        whole = torch.cat([whole, torch.full((3, 3 * 48), torch.nan, dtype=dtype)])
        apart = layer.silu(whole.clone())
        q, v, k = (x.unflatten(1, (2, 24)) for x in whole.split(48, dim=1))
        wanted = step.pool.clone()
        paged.hstu_paged_append(
            *(apart[:, at : at + 48].unflatten(1, (2, 24)) for at in (96, 48)), wanted, table, validate=False
        )
        paged.hstu_paged_silu_append(q, k, v, step.pool, table)
        assert torch.equal(whole[:count], apart[:count])
        assert whole[count:].isnan().all()
        assert torch.equal(step.pool.nan_to_num(9.0), wanted.nan_to_num(9.0))
        with pytest.raises(ValueError, match=r"hstu_paged_silu_append: q\.shape=.* does not fit"):
            paged.hstu_paged_silu_append(q[:, :1], k, v, step.pool, table)
        with pytest.raises(ValueError, match=r"hstu_paged_silu_append: v\.stride=\(0, 24, 1\) has overlapping rows"):
            paged.hstu_paged_silu_append(q, k, v[:1].expand(v.shape), step.pool, table)


@pytest.mark.parametrize(("dim", "splits"), [(16, 3), (32, 1), (24, 3)])
def test_parts_are_what_the_output_is_the_sum_of(dim, splits):
    """Where keys are not split, or heads narrower than a part's, the output itself."""
    with interpreted(
        "attnbench.kernels.hstu.paged.api", "attnbench.kernels.hstu.layer.api", "attnbench.kernels.hstu.arguments"
    ) as (paged, layer, arguments):
        step = make_step([(70, 18, 5), (5, 0, 3), (40, 1, 0)], seed=2, heads=2, dim=dim, dtype=torch.float16)
        given = step.q, step.k, step.v, step.pool, paged.Step(**step.table)
        named = {"alpha": ALPHA, "scaling_seqlen": SCALE, "splits": splits, "config": "m16n16w4s1-exp"}
        found, wanted = paged.hstu_paged_parts(*given, **named), paged.hstu_paged_attention(*given, **named)
        assert isinstance(found, arguments.Parts) == (splits > 1 and dim != 24)
        u, weight = torch.randn(len(step.q), 2 * dim).half(), torch.ones(2 * dim).half()
        gated = [
            layer.gate(x.flatten(1) if isinstance(x, torch.Tensor) else x, u, weight, weight, eps=1e-5, whole=True)
            for x in (found, wanted)
        ]
        assert torch.equal(*gated)


def test_token_by_token_is_the_same_as_at_once(paged):
    """Attention and append of one new token after another, over a page's end, as one long step."""
    whole = make_step([(28, 8, 0)], seed=21)
    wanted = plain(whole, dtype=torch.float64, alpha=ALPHA, scaling_seqlen=SCALE)
    for new in range(8):
        at = 28 + new
        one = {
            "offsets": torch.tensor([0, 1], dtype=torch.int32),
            "cached": torch.tensor([at], dtype=torch.int32),
            "indptr": whole.table["indptr"],
            "indices": whole.table["indices"],
            "num_targets": None,
            "max_new": 1,
            "max_cached": 64,
        }
        rows = [x[new : new + 1] for x in (whole.q, whole.k, whole.v)]
        found = paged.hstu_paged_attention(*rows, whole.pool, paged.Step(**one), alpha=ALPHA, scaling_seqlen=SCALE)
        torch.testing.assert_close(found[0].double(), wanted[new], rtol=1e-4, atol=1e-6)
        paged.hstu_paged_append(rows[1], rows[2], whole.pool, paged.Step(**one))


MISTAKES = {
    "q": ({"q": lambda s: None}, {}),
    "pool": ({"pool": lambda s: [1.0]}, {}),
    "k.shape": ({"k": lambda s: s.k[0]}, {}),
    "cached": ({}, {"cached": lambda t: t.tolist()}),
    "pool.shape": ({"pool": lambda s: s.pool[:, :, :16].contiguous()}, {}),
    "pool.stride": ({"pool": lambda s: s.pool[:, :, :, :, ::2]}, {}),
    "pool.dtype": ({"pool": lambda s: s.pool.double()}, {}),
    "q.shape": ({"q": lambda s: s.q[:, :1]}, {}),
    "k.dtype": ({"k": lambda s: s.k.half()}, {}),
    "v.stride": ({"v": lambda s: s.v.mT.contiguous().mT}, {}),
    "cached.dtype": ({}, {"cached": lambda t: t.long()}),
    "offsets.shape": ({}, {"offsets": lambda t: t[:-1]}),
    "indices.shape": ({}, {"indices": lambda t: t[None]}),
    "num_targets.shape": ({}, {"num_targets": lambda t: t[:1]}),
    "max_new": ({}, {"max_new": lambda n: -1}),
    "max_cached": ({}, {"max_cached": lambda n: 2.5}),
    "offsets[2]": ({}, {"offsets": lambda t: t + torch.tensor([0, 0, 1], dtype=torch.int32)}),
    "indptr[0]": ({}, {"indptr": lambda t: t + 1}),
    "indptr[1]": ({}, {"indptr": lambda t: torch.tensor([0, 1, len(t)], dtype=torch.int32)}),
    "num_targets[0]": ({}, {"num_targets": lambda t: t + 20}),
    "cached[0]": ({}, {"cached": lambda t: -t}),
    "indices[0]": ({}, {"indices": lambda t: t + 99}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_used_is_refused_in_one_line(paged, name):
    step = make_step([(37, 3, 5), (20, 2, 4)], seed=1, heads=2)
    tensors, table = MISTAKES[name]
    given = {x: tensors.get(x, lambda s, x=x: getattr(s, x))(step) for x in ("q", "k", "v", "pool")}
    changed = step.table | {field: change(step.table[field]) for field, change in table.items()}
    with pytest.raises(ValueError) as said:
        paged.hstu_paged_attention(
            *given.values(), paged.Step(**changed), alpha=ALPHA, scaling_seqlen=SCALE, validate=True
        )
    assert str(said.value).startswith(f"hstu_paged_attention: {name}=")
    assert "\n" not in str(said.value)
    assert ";" in str(said.value)


def test_what_32_bits_do_not_hold_is_refused(paged):
    from attnbench.kernels.shared.card import Card, stood_in_for  # of the interpreted modules

    def meta(*shape, strides=None):
        x = torch.empty(shape, device="meta")
        return x if strides is None else torch.empty_strided(shape, strides, device="meta")

    table = {
        name: torch.empty(length, dtype=torch.int32, device="meta")
        for name, length in (("offsets", 2), ("cached", 1), ("indptr", 2), ("indices", 1))
    }
    step = paged.Step(**table, num_targets=None, max_new=64, max_cached=64)
    near, far, pool = meta(64, 1, 16), meta(64, 1, 16, strides=(2**23 + 1, 16, 1)), meta(4, 2, 32, 1, 16)
    for tensors, said in (
        ((far, near, near, pool), r"q.stride=\(8388609, 16, 1\) has rows too far apart; at most 8388608 elements"),
        ((near, near, near, meta(2**25, 2, 32, 1, 16)), "pool.shape=.* has too many rows; at most 1073741824"),
    ):
        with pytest.raises(ValueError, match=f"^hstu_paged_attention: {said}$"):
            paged.hstu_paged_attention(*tensors, step, scaling_seqlen=1)
    wide = paged.Step(**table, num_targets=None, max_new=2**24, max_cached=64)
    with (
        stood_in_for(Card((9, 0), 132)),  # elsewhere a call on meta tensors computes shapes alone
        pytest.raises(ValueError, match=r"splits=1024 gives \d+ programs; under 2147483648"),
    ):
        paged.hstu_paged_attention(
            *(meta(64, 4, 16),) * 3,
            meta(4, 2, 32, 4, 16),
            wide,
            scaling_seqlen=1,
            splits=1024,
            config=paged.PagedConfig(block_m=16, block_n=16, warps=4, stages=1),
        )


def test_numbers_and_pages_that_cannot_be_used(paged):
    step = make_step([(37, 3, 5), (20, 2, 4)], seed=1, heads=2)
    usual = {"alpha": ALPHA, "scaling_seqlen": SCALE}
    wrongs = [{name: value} for name in ("alpha",) for value in (float("nan"), "1", True, 1e31, 10**400)]
    for wrong in (*wrongs, {"scaling_seqlen": 0}, {"scaling_seqlen": 2**24 + 1}, {"splits": 0}, {"config": 3}):
        with pytest.raises(ValueError, match=f"hstu_paged_attention: {next(iter(wrong))}="):
            paged.hstu_paged_attention(step.q, step.k, step.v, step.pool, paged.Step(**step.table), **usual | wrong)
    twice = step.table | {"indices": step.table["indices"][[0, 1, 0]]}
    with pytest.raises(ValueError, match="hstu_paged_append: indices="):
        paged.hstu_paged_append(step.k, step.v, step.pool, paged.Step(**twice), validate=True)
    with pytest.raises(ValueError, match="hstu_paged_attention: step=None is of type NoneType; a Step"):
        paged.hstu_paged_attention(step.q, step.k, step.v, step.pool, None, **usual)
    short = step.table | {"max_new": 3}
    with pytest.raises(ValueError, match="max_new=3 is below the 8 rows of sequence 0"):
        paged.hstu_paged_attention(step.q, step.k, step.v, step.pool, paged.Step(**short), **usual, validate=True)
    with pytest.raises(ValueError, match=r"config.block_n=64 is over the 32 keys of a page"):
        run(paged, step, block_n=64)
    for wrong in ({"order": "wss"}, {"block_n": 48}, {"loads": "fast"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            paged.PagedConfig(**{"block_m": 16, "block_n": 16, "warps": 4, "stages": 1} | wrong)
