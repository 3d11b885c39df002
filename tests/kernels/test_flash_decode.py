"""Few queries on many keys: keys shared out among programs and partial results combined, against the workload's oracle
in Triton's interpreter; when it is the default; how shares are cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.kernels.flash.config.decode import (
    LEAST_KEYS,
    decode_config,
    is_decode,
    lead_of,
    programs_of,
    tiles_of_job,
)
from attnbench.kernels.flash.config.family import FAMILY, Shape
from attnbench.kernels.flash.config.forward import DECODE, parse
from attnbench.kernels.flash.config.space import fault, space
from attnbench.workloads.attention.inputs import make_inputs

from .interpreter import interpreted
from .test_flash_forward import case_of, held, lse_of

pytest.importorskip("triton")

from triton.language import constexpr

NAMES = ("problem", "config.forward", "decode", "portable.decode", "api")


@pytest.fixture(scope="module")
def kernels():
    with interpreted(*(f"attnbench.kernels.flash.{name}" for name in NAMES)) as modules:
        yield dict(zip(NAMES, modules, strict=True))


SMALL, HALF, TALL = "m16n16w4s1-decode", "m16n32w4s1-decode-x1", "m64n16w4s1-tma-decode"
CASES = {
    "one-key": ({"batch": 1, "seqlen": 1, "seqlen_k": 1}, SMALL, 8),
    "one-program": ({"batch": 1, "seqlen": 2, "seqlen_k": 40}, HALF, 1),
    "a-tile-a-program": ({"batch": 1, "seqlen": 1, "seqlen_k": 128, "nheads": 1}, SMALL, 2),
    "one-query": ({"batch": 1, "seqlen": 1, "seqlen_k": 129, "causal": True}, SMALL, 8),
    "under-a-tile": ({"batch": 1, "seqlen": 3, "seqlen_k": 127, "causal": True}, HALF, 3),
    "grouped": ({"batch": 3, "seqlen": 5, "seqlen_k": 200, "nheads": 8, "nheads_kv": 2, "causal": True}, TALL, 5),
    "more-rows-than-a-tile": ({"batch": 2, "seqlen": 9, "seqlen_k": 150, "nheads": 6, "nheads_kv": 1}, SMALL, 7),
    "more-queries": ({"batch": 2, "seqlen": 40, "seqlen_k": 7, "causal": True}, SMALL, 3),
    "window": ({"batch": 2, "seqlen": 4, "seqlen_k": 180, "window": (50, 1)}, SMALL, 4),
    "window-causal": ({"batch": 2, "seqlen": 4, "seqlen_k": 180, "window": (9, 0), "causal": True}, SMALL, 4),
    "window-far": ({"batch": 1, "seqlen": 4, "seqlen_k": 60, "window": (2**31 - 1, 2**31 - 1)}, SMALL, 4),
    "window-before": ({"batch": 1, "seqlen": 30, "seqlen_k": 3, "window": (0, 0)}, SMALL, 4),
    "packed": (
        {"batch": 4, "seqlen": 5, "seqlen_k": 300, "lengths": "5/300:1/1:2/33:3/64", "nheads_kv": 1, "causal": True},
        SMALL,
        9,
    ),
    "packed-rows": ({"batch": 3, "seqlen": 20, "seqlen_k": 90, "lengths": "20/90:1/70:17/2"}, HALF, 6),
    "packed-window": (
        {"batch": 3, "seqlen": 5, "seqlen_k": 90, "lengths": "5/90:1/70:4/2", "window": (20, 3)},
        SMALL,
        6,
    ),
    "many-sequences": (
        {"batch": 9, "seqlen": 2, "seqlen_k": 40, "lengths": "1/40:2/1:1/17:2/16:1/33:1/1:2/40:1/8:2/31", "nheads": 1},
        SMALL,
        5,
    ),
    "odd-dims": ({"batch": 1, "seqlen": 3, "seqlen_k": 90, "headdim": 40, "headdim_v": 24}, SMALL, 4),
    "wide": ({"batch": 1, "seqlen": 3, "seqlen_k": 90, "headdim": 256, "headdim_v": 16, "nheads_kv": 1}, SMALL, 4),
    "wide-values": ({"batch": 1, "seqlen": 3, "seqlen_k": 90, "headdim": 16, "headdim_v": 200}, SMALL, 8),
    "wide-values-at-once": ({"batch": 1, "seqlen": 3, "seqlen_k": 90, "headdim": 16, "headdim_v": 200}, SMALL, 2),
    "one-dim": ({"batch": 1, "seqlen": 2, "seqlen_k": 50, "headdim": 1, "headdim_v": 3}, SMALL, 4),
}


def run(kernels, case, inputs, short, monkeypatch, processors=2, lead=1):
    """Output and lse, written over NaN, on a card of so many SMs, with so many blanks before a job that has some."""
    monkeypatch.setattr(kernels[DECODE], "processors", lambda x: processors)
    monkeypatch.setattr(kernels[DECODE], "lead_of", lambda *_: lead)
    packed = {name: getattr(inputs, name) for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")}
    problem = kernels["problem"].problem_of(
        inputs.q, inputs.k, inputs.v, causal=case.causal, window=case.window, **(packed if case.packed else {})
    )
    out = torch.full((*inputs.q.shape[:-1], case.headdim_v), torch.nan, dtype=inputs.q.dtype)
    lse = torch.full(kernels["problem"].lse_shape(inputs.q, problem), torch.nan)
    kernels[DECODE].launch_decode(
        inputs.q, inputs.k, inputs.v, out, lse, problem, kernels["config.forward"].parse(short)
    )
    return out, lse


@pytest.mark.parametrize("name", CASES)
def test_right_for_every_mask_and_cut(kernels, name, monkeypatch):
    values, short, processors = CASES[name]
    case = case_of(**values)
    inputs = make_inputs(case, seed=3, kind="normal", device="cpu")
    monkeypatch.setattr(kernels["portable.decode"], "SCAN", constexpr(4))
    out, lse = run(kernels, case, inputs, short, monkeypatch, processors)
    held(case, inputs, out)
    torch.testing.assert_close(lse, lse_of(case, inputs).float(), rtol=1e-5, atol=1e-5)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.data())
def test_right_wherever_keys_are_cut(kernels, data):
    batch = data.draw(st.integers(1, 4))
    lengths = [(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 90))) for _ in range(batch)]
    case = case_of(
        batch=batch,
        seqlen=max(queries for queries, _ in lengths),
        seqlen_k=max(keys for _, keys in lengths),
        lengths=":".join(f"{queries}/{keys}" for queries, keys in lengths),
        nheads=4,
        nheads_kv=data.draw(st.sampled_from((1, 2, 4))),
        causal=data.draw(st.booleans()),
        window=data.draw(st.sampled_from((None, (30, 2)))),
    )
    inputs = make_inputs(case, seed=4, kind="normal", device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        processors, lead = data.draw(st.integers(1, 20)), data.draw(st.sampled_from((0, 1, 5)))
        out, lse = run(kernels, case, inputs, SMALL, patch, processors, lead)
    held(case, inputs, out)
    torch.testing.assert_close(lse, lse_of(case, inputs).float(), rtol=1e-5, atol=1e-5)


def test_right_in_half_precision(kernels, monkeypatch):
    case = case_of(batch=2, seqlen=3, seqlen_k=200, nheads=8, nheads_kv=2, headdim=32, causal=True, dtype="fp16")
    inputs = make_inputs(case, seed=5, kind="normal", device="cpu")
    out, _ = run(kernels, case, inputs, SMALL, monkeypatch, 5)
    held(case, inputs, out)


def test_rows_of_a_sequence_without_keys_or_queries_are_written(kernels, monkeypatch):
    q, kv = torch.randn(4, 2, 16), torch.randn(60, 2, 16)
    offsets = [torch.tensor(at, dtype=torch.int32) for at in ([0, 2, 2, 4], [0, 0, 30, 60])]
    problem = kernels["problem"].problem_of(
        q, kv, kv, cu_seqlens_q=offsets[0], cu_seqlens_k=offsets[1], max_seqlen_q=2, max_seqlen_k=30
    )
    out, lse = torch.full_like(q, torch.nan), torch.full((1, 2, 4), torch.nan)
    monkeypatch.setattr(kernels[DECODE], "processors", lambda x: 3)
    kernels[DECODE].launch_decode(q, kv, kv, out, lse, problem, kernels["config.forward"].parse(SMALL))
    assert (out[:2] == 0).all()
    assert (lse[..., :2] == -torch.inf).all()
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q[2:], kv[30:], kv[30:]))
    )
    torch.testing.assert_close(out[2:], wanted[0].transpose(0, 1))


def test_no_keys_at_all(kernels, monkeypatch):
    case = case_of(batch=2, seqlen=3, seqlen_k=4)
    inputs = make_inputs(case, seed=5, kind="normal", device="cpu")
    out, lse = run(kernels, case, replace(inputs, k=inputs.k[:, :0], v=inputs.v[:, :0]), SMALL, monkeypatch)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


def test_what_no_query_sees_reaches_nothing(kernels, monkeypatch):
    """Keys and values of the next sequence, and of tiles that are before every window, are NaN."""
    case = case_of(batch=2, seqlen=2, seqlen_k=100, lengths="2/100:1/50", window=(20, 0), causal=True)
    inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
    expected = run(kernels, case, inputs, SMALL, monkeypatch, 4)
    for x in (inputs.k, inputs.v):
        x[:64] = torch.nan
        x[100:116] = torch.nan
    out, lse = run(kernels, case, inputs, SMALL, monkeypatch, 4)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_strides_of_heads_first_and_of_a_longer_cache(kernels, monkeypatch):
    case = case_of(batch=2, seqlen=2, seqlen_k=70, nheads=4, nheads_kv=2)
    inputs = make_inputs(case, seed=7, kind="normal", device="cpu")
    expected, _ = run(kernels, case, inputs, SMALL, monkeypatch, 4)
    cache = {name: torch.full((2, 2, 99, 16), torch.nan) for name in "kv"}
    for name, x in cache.items():
        x[:, :, :70] = getattr(inputs, name).transpose(1, 2)
    views = {name: x[:, :, :70].transpose(1, 2) for name, x in cache.items()}
    q = inputs.q.transpose(1, 2).contiguous().transpose(1, 2)
    out, _ = run(kernels, case, replace(inputs, q=q, **views), SMALL, monkeypatch, 4)
    assert torch.equal(out, expected)


def test_the_call_takes_it_by_default_and_its_backward_has_the_right_lse(kernels):
    api = kernels["api"]
    q, k, v = (torch.randn(1, rows, heads, 16, requires_grad=True) for rows, heads in ((2, 2), (520, 1), (520, 1)))
    assert api.default_forward(q, k, v, api.problem_of(q, k, v, causal=True)).order == DECODE
    found = []
    for forward in (None, "m16n64w4s1"):
        out, lse = api.flash_attention(q, k, v, causal=True, forward=forward)
        found.append((out.detach(), lse, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-5, atol=2e-5)


def test_the_rule_of_few_queries():
    assert is_decode(1, LEAST_KEYS, 1)
    assert is_decode(16, 8192, 32)
    assert is_decode(64, 8192, 1)
    assert not is_decode(65, 8192, 1)
    assert not is_decode(17, 8192, 4)
    assert not is_decode(1, LEAST_KEYS - 1, 4)


def test_every_card_precision_dim_and_number_of_rows_has_a_default_that_fits():
    for major, item_bytes, dim, rows, described in product(
        (0, 8, 9, 10), (2, 4), (8, 64, 96, 128, 256), (1, 4, 17, 64, 512), (False, True)
    ):
        config = decode_config((major, 0), item_bytes, dim, rows, described=described)
        assert config.order == DECODE
        assert config.block_m >= min(rows, 32) or item_bytes == 4
        assert config.loads == "pointer" or described
        shape = Shape(dim=dim, dim_v=dim, item_bytes=item_bytes, seqlen_q=rows, seqlen_k=8192, capability=(major, 0))
        if major and item_bytes == 2:
            assert fault(config, shape) is None, config.short


def test_names_of_few_queries_are_listed_and_the_default_is_one_of_them():
    shape = Shape(dim=128, dim_v=128, seqlen_q=1, seqlen_k=8192, repeats=4)
    there = space(shape)
    assert parse(FAMILY.default(shape, "fwd")) in there
    assert {config.order for config in there} >= {DECODE, "plain"}
    assert not {config.order for config in space(replace(shape, seqlen_k=256))} & {DECODE}
    assert parse("m16n64w4s4-decode-x3").sharers == 3


@given(
    queries=st.integers(1, 40),
    keys=st.integers(0, 90),
    left=st.none() | st.integers(0, 95),
    right=st.none() | st.integers(0, 40),
)
def test_tiles_of_a_job_are_those_that_a_query_sees(queries, keys, left, right):
    seen = [
        key
        for key in range(keys)
        if any(
            (left is None or key >= query + keys - queries - left)
            and (right is None or key <= query + keys - queries + right)
            for query in range(queries)
        )
    ]
    wanted = seen[-1] // 16 - seen[0] // 16 + 1 if seen else 1
    assert tiles_of_job(queries, keys, left, right, 16) == wanted


def test_programs_fill_the_card_and_have_two_tiles_at_least():
    config = parse("m16n64w4s4-decode")
    assert programs_of(config, 8 * 128, 132) == 264
    assert programs_of(config, 64 * 8 * 128, 132) == 264
    assert programs_of(config, 64, 132) == 32
    assert programs_of(config, 1, 132) == 1
    assert programs_of(replace(config, sharers=3), 1 << 20, 132) == 396


def test_starts_of_jobs_count_in_shares_where_programs_may_have_unequally_many(kernels, monkeypatch):
    """Four sequences of 5 tiles: 4 programs have one each, 8 half of one, 3 and those of packed ones a part and more."""
    leads = []

    def launch(kernel, grid, *values, **named):
        leads.append(named["lead"])

    monkeypatch.setattr(kernels[DECODE], "launch", launch)
    for processors, lengths, lead in ((4, "full", 0), (8, "full", 0), (3, "full", 7), (4, ":".join(["1/160"] * 4), 7)):
        leads.clear()
        case = case_of(batch=4, seqlen=1, seqlen_k=160, nheads=1, lengths=lengths)
        run(kernels, case, make_inputs(case, seed=0, kind="normal", device="cpu"), HALF, monkeypatch, processors, 7)
        assert set(leads) == {lead}, (processors, lengths)


def test_a_start_is_as_many_tiles_as_an_sm_reads_meanwhile():
    assert lead_of(parse("m16n64w4s4-decode-x1"), 512) == 3
    assert lead_of(parse("m16n64w4s4-decode"), 512) == 2
    assert lead_of(parse("m16n32w4s4-decode-x1"), 512) == 6


def test_no_list_is_longer_than_its_numbers_count(kernels):
    config = parse("m16n16w4s1-decode")
    assert lead_of(config, 4, jobs=2**24, tiles=2**29) == 95 < lead_of(config, 4)
    assert lead_of(config, 4, jobs=2**10, tiles=2**20) == lead_of(config, 4)
    q = torch.zeros(1, 1, 1, 1, dtype=torch.float16).expand(1, 2**16, 128, 1)
    said = (
        r"forward=m16n16w4s1-decode lists 2147483648 tiles of keys; at most 2147483647, larger tiles or another order$"
    )
    with pytest.raises(ValueError, match=said):
        kernels["api"].flash_attention(q, q, q, forward="m16n16w4s1-decode")


@pytest.mark.parametrize(
    ("jobs", "programs"),
    [(8, 128), (32, 128), (128, 128), (256, 128), (512, 128), (24, 132), (40, 132), (132, 132), (131, 131), (1, 132)],
)
def test_shares_end_with_jobs_where_few_programs_less_make_that_so(jobs, programs):
    config = parse("m16n64w4s4-decode-x1")
    assert programs_of(config, jobs * 1024, 132, jobs) == programs
    assert programs_of(config, jobs * 1024, 132) == 132


def test_every_share_is_as_long_as_any_other_or_a_tile_longer(kernels, monkeypatch):
    """What the host launches: programs, and room for two partial results of each, none where nothing is cut."""
    launched = []
    monkeypatch.setattr(kernels[DECODE], "launch", lambda kernel, grid, **named: launched.append((grid, named)))
    for batch, keys, cut in ((2, 160, True), (4, 160, False), (1, 16, False)):
        launched.clear()
        case = case_of(batch=batch, seqlen=1, seqlen_k=keys, nheads=2)
        inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
        run(kernels, case, inputs, "m16n16w4s1-decode-x4", monkeypatch, 2)
        programs = launched[0][0][0]
        assert programs == min(8, batch * 2 * max(keys // 16, 1) // 2)
        assert cut == launched[0][1]["META"].CUT
        assert len(launched) == 1 + cut
        assert (launched[0][1]["part_ptr"] is not None) == cut
        if cut:
            assert launched[0][1]["part_ptr"].shape == (2 * programs, 16, 16)


@pytest.mark.parametrize(
    ("short", "said"),
    [
        ("m16n64w4s2-tma-decode", "uses tma only with warpgroup products, not with m16; m64"),
        ("m16n64w4s2-decode-fused", "has fields that the order decode does not support; m16n64w4s2-decode"),
        ("m64n64w4s2-x3", "has x…, which only the order decode has; without"),
    ],
)
def test_words_of_other_orders_are_refused(kernels, short, said):
    q = torch.randn(1, 2, 2, 16)
    with pytest.raises(ValueError, match="forward=") as raised:
        kernels["api"].flash_attention(q, q, q, forward=short)
    assert said in str(raised.value)
