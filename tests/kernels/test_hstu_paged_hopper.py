"""The paged HSTU forward for Hopper on a machine that executes it, against the answer written out in fp64.

Pages lie in random order; a slot that nobody wrote, and every page that no sequence owns, is NaN.
"""

from __future__ import annotations

import pytest
import torch

from . import paged_step
from .paged_step import make_step

pytest.importorskip("triton")

from attnbench.kernels.hstu.dense import parts
from attnbench.kernels.hstu.paged import api, calls, forward
from attnbench.kernels.hstu.paged.configs import PagedConfig, hopper_config, hopper_fault

from .hopper_machine import machine_runs

ALPHA, SCALE = 0.3, 37
TWO = {"block_m": 128, "block_n": 64, "warps": 8, "stages": 2, "silu": "exp", "order": "ws"}
CUTS = {
    "two": TWO,
    "three": TWO | {"block_m": 192, "warps": 12, "stages": 3},
    "wide": TWO | {"block_n": 128},
    "narrow": TWO | {"block_n": 32, "stages": 1},
}


@pytest.fixture(autouse=True)
def _plain_sum(monkeypatch):
    """The sum of parts is no kernel of Hopper's: test_hstu_paged.py runs it in Triton's interpreter."""

    def launch_sum(workspace, out, scale, *, hopper):
        assert hopper
        total = workspace.sum(1).unflatten(2, (-1, 4, 2, 2)).transpose(3, 4).flatten(2)
        out.copy_(total[:, :, : out.shape[2]] * scale)

    monkeypatch.setattr(forward, "launch_sum", launch_sum)


def run(step, cut, *, splits=1, seed=0):
    """The output, written over NaN, of partial sums that were NaN too."""
    out = torch.full(step.q.shape, torch.nan, dtype=step.q.dtype)
    shape = forward.workspace_shape(step.q, splits)
    workspace = None if shape is None else torch.full(shape, torch.nan)
    with machine_runs(forward, "hstu_paged_hopper_forward", seed=seed):
        forward.launch_forward(
            step.q,
            step.k,
            step.v,
            step.pool,
            out,
            api.Step(**step.table),
            PagedConfig(**cut),
            alpha=ALPHA,
            scaling_seqlen=SCALE,
            splits=splits,
            workspace=workspace,
        )
    return out


def held(step, found):
    paged_step.held(step, found, alpha=ALPHA, scaling_seqlen=SCALE)


def step_of(lengths, **given):
    return make_step(lengths, **{"dtype": torch.bfloat16, "page_size": 64} | given)


CASES = {
    "one-of-each": ([(0, 5, 3), (63, 1, 2), (64, 1, 1), (65, 0, 4)], "two", 1),
    "around-tiles": ([(127, 2, 0), (128, 1, 5), (129, 70, 0)], "three", 2),
    "one-token": ([(70, 1, 0)], "two", 3),
    "one-candidate": ([(70, 0, 1)], "wide", 1),
    "nothing-cached": ([(0, 33, 20), (0, 70, 0)], "wide", 2),
    "nothing-at-all": ([(0, 0, 0), (5, 0, 2), (0, 0, 1), (64, 0, 0)], "two", 1),
    "many-candidates": ([(35, 3, 145)], "three", 1),
    "history-over-tiles": ([(17, 150, 7), (200, 3, 9)], "narrow", 5),
    "more-parts-than-tiles": ([(100, 20, 10), (0, 1, 1)], "two", 7),
}


@pytest.mark.parametrize("name", CASES)
def test_right_around_pages_and_tiles(name):
    lengths, cut, splits = CASES[name]
    step = step_of(lengths, seed=len(name), dtype=(torch.bfloat16, torch.float16)[len(name) % 2])
    held(step, run(step, CUTS[cut], splits=splits, seed=len(name)))


@pytest.mark.parametrize("page_size", [32, 64, 128])
@pytest.mark.parametrize("cut", ["two", "wide", "narrow"])
def test_pages_and_tiles_of_any_two_sizes(page_size, cut):
    """The last page, and with small pages the last box of a tile, is partly filled or not there."""
    step = step_of(
        [(page_size - 1, 1, 1), (page_size + 1, 2, 0), (2 * page_size, 0, 3), (1, 1, 0)], page_size=page_size, seed=4
    )
    held(step, run(step, CUTS[cut], splits=1 + (page_size == 64), seed=page_size))


@pytest.mark.parametrize(("dim", "heads", "cut"), [(24, 2, "two"), (64, 1, "three"), (128, 1, "wide"), (256, 2, "two")])
def test_dims_and_heads(dim, heads, cut):
    step = step_of([(70, 10, 9), (33, 2, 1)], dim=dim, heads=heads, page_size=32, seed=dim)
    for splits in (1, 3):
        held(step, run(step, CUTS[cut], splits=splits, seed=dim))


def test_no_candidates_at_all():
    step = step_of([(90, 20, 0), (3, 1, 0)], seed=10)
    step.table["num_targets"] = None
    held(step, run(step, TWO, splits=2))


def test_bounds_that_are_too_large_change_nothing():
    step = step_of([(70, 5, 9), (31, 2, 1)], seed=7)
    usual = run(step, TWO, splits=2)
    step.table |= {"max_new": 300, "max_cached": 4000}
    assert torch.equal(usual, run(step, TWO, splits=2))


@pytest.mark.parametrize("splits", [1, 3])
def test_the_same_bits_in_whatever_order_its_warps_run(splits):
    step = step_of([(150, 40, 90), (10, 70, 3)], seed=5)
    first, *others = (run(step, CUTS["three"], splits=splits, seed=seed) for seed in range(3))
    assert all(torch.equal(first, other) for other in others)


def test_a_candidate_and_a_neighbour_change_nobody_elses_output():
    step = step_of([(70, 3, 5), (20, 2, 4)], seed=12)
    before = run(step, TWO, splits=2)
    step.q[5], step.k[5], step.v[5] = 3.0, 3.0, 3.0  # a candidate of the first sequence
    after = run(step, TWO, splits=2)
    same = [row for row in range(14) if row != 5]
    assert torch.equal(before[same], after[same])
    assert not torch.equal(before[5], after[5])


def test_slices_of_one_tensor_are_read_where_they_lie():
    step = step_of([(70, 3, 5)], seed=13, heads=2)
    assert step.q.stride(0) == 3 * step.q.shape[1] * step.q.shape[2]
    packed = step_of([(70, 3, 5)], seed=13, heads=2)
    packed.q, packed.k, packed.v = (x.contiguous() for x in (packed.q, packed.k, packed.v))
    assert torch.equal(run(step, TWO), run(packed, TWO))


def test_token_by_token_is_the_same_as_at_once():
    """Attention of one new token after another, each appended by hand, over a page's end, as one long step."""
    whole = step_of([(62, 4, 0)], seed=21)
    wanted = paged_step.plain(whole, dtype=torch.float64, alpha=ALPHA, scaling_seqlen=SCALE)
    for new in range(4):
        at = 62 + new
        table = whole.table | {
            "offsets": torch.tensor([0, 1], dtype=torch.int32),
            "max_new": 1,
            "max_cached": 128,
            "cached": torch.tensor([at], dtype=torch.int32),
        }
        one = paged_step.Paged(*(x[new : new + 1] for x in (whole.q, whole.k, whole.v)), whole.pool, table, [], [], [])
        torch.testing.assert_close(run(one, TWO, splits=2)[0].double(), wanted[new], rtol=2e-2, atol=2e-3)
        page = whole.table["indices"][at // 64]
        whole.pool[page, 0, at % 64], whole.pool[page, 1, at % 64] = whole.k[new], whole.v[new]


def test_the_default_is_hoppers_where_it_can_run():
    assert hopper_config((9, 0), 2, 256, 64).order == "ws"
    for capability, item_bytes, dim in (((8, 0), 2, 64), ((10, 0), 2, 64), ((9, 0), 4, 64), ((9, 0), 2, 20)):
        assert hopper_config(capability, item_bytes, dim, 64) is None


def test_few_rows_on_a_long_cache_are_split_and_a_full_card_is_not():
    def splits(items, keys, rows=128, dim=256):
        return parts.parts_of(items, rows, keys, 64, 2 * dim, dim, 132)

    assert 9 <= splits(12, 4480) <= 11
    assert 12 <= splits(8, 4480, rows=192, dim=128) <= 17
    assert splits(320, 5376) == 1
    assert splits(132, 4480) == 1
    assert [splits(0, 4480), splits(12, 0), splits(1, 64)] == [1, 1, 1]
    assert splits(1, 10**6) <= 265


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"capability": (10, 0)}, "is for sm_90 alone, not sm_100"),
        ({"item_bytes": 4}, "16-bit"),
        ({"dim": 20}, "rows of 20 dims"),
        ({"block_n": 256}, "tiles of 256 keys"),
        ({"warps": 12}, "128 rows and 12 warps"),
        ({"stages": 5, "dim": 256}, "KiB of shared memory"),
        ({"loads": "tma"}, "its own loads"),
        ({"precision": "tf32"}, "its own loads"),
        ({"new_stages": 2}, "its own loads"),
    ],
)
def test_what_cannot_be_launched_is_named(given, words):
    shape = {"capability": (9, 0), "item_bytes": 2, "dim": 128}
    assert hopper_fault(PagedConfig(**TWO), **shape) is None
    cut = TWO | {name: value for name, value in given.items() if name not in shape}
    shape |= {name: value for name, value in given.items() if name in shape}
    assert words in (hopper_fault(PagedConfig(**cut), **shape) or "")


def test_a_refusal_is_one_line_and_nothing_else_runs_instead():
    with pytest.raises(ValueError, match=r"^block_m=192 is not known of order=plain; one of 16, 32, 64, 128, 256$"):
        PagedConfig(**TWO | {"block_m": 192, "order": "plain"})
    step = step_of([(70, 3, 5)], seed=1, dim=20)
    with pytest.raises(ValueError, match=r"^hstu_paged_attention: config\.order=ws loads by tensor maps.*; another"):
        calls._check_config(PagedConfig(**TWO), step.q, step.k, step.v, step.pool)
    step = step_of([(70, 3, 5)], seed=1)
    odd = torch.empty(8, 1, 20, dtype=torch.bfloat16)[:, :, :16]
    with pytest.raises(
        ValueError, match=r"^hstu_paged_attention: k\.stride=\(20, 20, 1\) is not a multiple of 16 bytes"
    ):
        calls._check_config(PagedConfig(**TWO), step.q, odd, step.v, step.pool)
