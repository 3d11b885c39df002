"""Quantised attention in Triton's interpreter: what is quantised, the forward over it, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash.quant import api as compiled
from attnbench.kernels.flash.quant.prepare import inverse_of
from attnbench.kernels.flash.quant.prepare import sample_of as programs_of

from . import quant_cases
from .interpreter import interpreted
from .quant_cases import (
    distance,
    held,
    inputs_of,
    key_scales,
    mean_of,
    packed_of,
    recipe_of,
    sample_of,
    sequences,
    truth_of,
)

SMALL = "m64n64w4s2"


@pytest.fixture(scope="module")
def kernels():
    with interpreted("attnbench.kernels.flash.quant.api") as modules:
        yield modules[0]


def attend(kernels, inputs, config=SMALL, **options):
    return kernels.flash_quant_attention(inputs.q, inputs.k, inputs.v, config=config, **(inputs.options | options))


CASES = {
    "one-query": {"seqlen": 1, "seqlen_k": 129, "causal": True},
    "one-key": {"seqlen": 3, "seqlen_k": 1},
    "63": {"seqlen": 63, "causal": True},
    "127": {"seqlen": 127, "batch": 2},
    "129": {"seqlen": 129, "causal": True, "heads": 2, "dim": 128},
    "1000": {"seqlen": 129, "seqlen_k": 1000},
    "1000-causal": {"seqlen": 1000, "causal": True},
    "4200-keys": {"seqlen": 70, "seqlen_k": 4200, "kind": "channel-bias"},
    "rows-without-keys": {"seqlen": 200, "seqlen_k": 70, "causal": True},
    "grouped": {"seqlen": 130, "heads": 4, "heads_kv": 2, "batch": 2, "causal": True},
    "96-dims": {"seqlen": 70, "seqlen_k": 150, "dim": 96, "dtype": torch.float16},
    "odd-dims": {"seqlen": 70, "dim": 37},
    "no-keys": {"seqlen": 70, "seqlen_k": 0},
    "outliers": {"seqlen": 100, "seqlen_k": 300, "kind": "outliers"},
    "channel-bias": {"seqlen": 100, "seqlen_k": 300, "kind": "channel-bias"},
}


@pytest.mark.parametrize("name", CASES)
def test_the_recipe_for_every_mask_and_length(kernels, name):
    inputs = inputs_of(**CASES[name])
    held(inputs, *attend(kernels, inputs), tile=64, off=0.09 if name == "outliers" else 0.05)


def test_right_by_another_tile_and_scale(kernels):
    inputs = inputs_of(150, 260, causal=True, dim=128)
    held(inputs, *attend(kernels, inputs, "m128n128w8s2", scale=0.2), scale=0.2)


@pytest.mark.parametrize("rows", [0.0, 1.0])
def test_a_small_scale_hides_keys_no_less(kernels, rows):
    """Alike keys have the least scale there is; times that of a row it must not become 0, which times -∞ is NaN."""
    inputs = inputs_of(129, 1, causal=True)
    inputs.q.mul_(rows)
    out, lse = attend(kernels, inputs, scale=1e-9 if rows == 0 else 1e-29)
    assert (out[:, :128] == 0).all()
    assert (lse[..., :128] == -torch.inf).all()
    torch.testing.assert_close(out[:, 128], inputs.v[:, 0], rtol=2**-3, atol=0)
    assert lse[..., 128].abs().max() < 1e-6


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_each_on_their_own(kernels, causal):
    inputs = packed_of([(1, 129), (130, 3), (0, 5), (63, 64), (7, 0), (128, 128)], heads=2, heads_kv=1, causal=causal)
    held(inputs, *attend(kernels, inputs, validate=True), tile=64)


@pytest.mark.parametrize("dim", [64, 128])
def test_what_is_quantised(kernels, dim):
    inputs = inputs_of(130, 200, heads=2, heads_kv=1, dim=dim, kind="channel-bias", batch=2)
    problem = kernels.quant_problem_of(inputs.q, inputs.k, inputs.v)
    made = kernels.allocate(inputs.q, inputs.k, problem)
    for x in (made.q, made.k, made.v, made.q_scale, made.k_scale, made.v_scale):
        x.view(torch.uint8).fill_(0x7F)  # what nobody writes shows
    kernels.launch_prepare(inputs.q, inputs.k, inputs.v, made, problem)
    keys = (inputs.k.double() - inputs.k.double().mean(1, keepdim=True))[:, :, 0]
    scales = key_scales(keys)
    for number in range(2):
        found = made.k.view(2, 256, dim)[number]
        assert ((found[:200] - keys[number] / scales[number]).abs() < 0.51).all()
        assert (found[200:] == 0).all()
        queries = inputs.q[number].double().transpose(0, 1)
        whole = (queries / queries.abs().amax(-1, keepdim=True) * 127).round()
        assert (made.q.view(2, 2, 192, dim)[:, number, :130] == whole).double().mean() > 0.999
        # Values of a key stand where the thread that has its weight reads them, columns behind one another.
        order = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
        places = torch.cat([16 * part + torch.tensor(order) for part in range(16)])
        values = made.v.view(2, 2, dim, 128)[number].double().transpose(0, 1).reshape(dim, 256)
        want = torch.zeros(256, dim, dtype=torch.double)
        want[:200] = inputs.v[number, :, 0].double()
        values = values * made.v_scale[number, 0].double()[:, None]
        step = want.abs().amax(0) / 448 / 512
        assert ((values.T - want[places]).abs() <= want[places].abs() / 16 + step).all()


SAMPLED = {"sequence": 4700, "packed": [(3, 1023), (5, 1025), (0, 0), (2, 2100), (1, 4100), (4, 7)]}


@pytest.mark.parametrize("name", SAMPLED)
def test_keys_lose_the_mean_of_a_sample_of_their_own_sequence(kernels, monkeypatch, name):
    """Of bits that do not depend on what surrounds it, and with what is in no sample never read for it."""
    options = {"heads": 4, "heads_kv": 2, "dim": 37, "kind": "channel-bias"}
    packed = name == "packed"
    inputs = packed_of(SAMPLED[name], **options) if packed else inputs_of(8, SAMPLED[name], **options)
    monkeypatch.setitem(kernels.launch_prepare.__globals__, "LEAST_CHUNK", 128 * 64)
    bounds = {key: value for key, value in inputs.options.items() if key != "causal"}
    problem = kernels.quant_problem_of(inputs.q, inputs.k, inputs.v, **bounds)
    found = []
    for launch in (kernels.launch_prepare, kernels.launch_smooth):
        made = kernels.allocate(inputs.q, inputs.k, problem)
        made.found.fill_(torch.nan)
        launch(inputs.q, inputs.k, inputs.v, made, problem)
        found.append(made.found[0].view(problem.batch, 2, -1)[..., :37])
    assert torch.equal(*found)
    want = torch.stack([mean_of(k[::2])[:, 0] for _, k, _ in sequences(inputs)])
    torch.testing.assert_close(found[0].double(), want, rtol=1e-5, atol=1e-5)
    for number, (_, k, _) in enumerate(sequences(inputs)):
        _, keys, _ = k.shape
        alone = k[::2].transpose(0, 1)[None].to(inputs.k.dtype)
        alone[:, [row for row in range(keys) if row not in set(sample_of(keys).tolist())]] = torch.nan
        problem = kernels.quant_problem_of(inputs.q[None] if packed else inputs.q, alone, alone)
        made = kernels.allocate(inputs.q[None] if packed else inputs.q, alone, problem)
        kernels.launch_smooth(inputs.q[None] if packed else inputs.q, alone, alone, made, problem)
        assert torch.equal(made.found[0].view(2, -1)[..., :37], found[0][number])


def test_a_sample_has_a_row_of_each_stratum_and_programs_for_all():
    longest = 0
    for keys in (*range(3000), 4095, 4096, 17_776):
        sample = sample_of(keys)
        assert programs_of(keys, packed=False) == len(sample)
        longest = max(longest, len(sample))
        assert programs_of(keys, packed=True) >= longest
        if keys < 1024:
            assert torch.equal(sample, torch.arange(keys))
        else:
            size = min(8, 1 << (keys // 512).bit_length() - 1)
            assert len(sample) >= 512
            assert torch.equal(sample // size, torch.arange(keys // size))


@pytest.mark.parametrize("keys", [512, 1024, 2048])
def test_one_huge_key_of_the_sample_makes_no_noise_of_others(kernels, keys):
    """The mean moves by far less than half a step of the keys that share its scale, or noise would round them up or down."""
    inputs = inputs_of(16, keys, heads=8)
    generator = torch.Generator().manual_seed(1)
    for head in range(8):  # of the rows of a stratum each in another head
        inputs.k[0, 40 + head, head] = 3000 * torch.randn(64, generator=generator).sign()
    out, _ = attend(kernels, inputs)
    assert distance(out, truth_of(inputs)[0]) < 0.06


@pytest.mark.parametrize("keys", [2048, 4096, 17_776])
def test_no_period_of_rows_is_taken_for_their_mean(keys):
    """The mean over a sample of a wave is that of as many random rows, for periods of 2 rows to all of them."""
    sample = sample_of(keys).double()
    periods = torch.cat([torch.arange(2, 260), torch.logspace(0.31, 3.5, 1000)]).double()
    means = torch.exp(2j * torch.pi * sample[None] / periods[periods <= keys / 4, None]).mean(1).abs()
    assert means.max() <= 4 * len(sample) ** -0.5
    assert means.square().mean() <= 1.2 / len(sample)


@pytest.mark.parametrize("by", [1, 2, 3, 7, 640, 896, 2**16 - 1, 2**30 + 1, 2**31 - 1])
def test_a_product_with_the_inverse_is_a_quotient_or_one_less(by):
    largest = 2**31 - 1
    assert 0 < inverse_of(by) <= largest
    multiples = [place * by for place in (1, 2, 1000, largest // by) if place * by <= largest]
    for number in {0, largest, *multiples, *(one - 1 for one in multiples)}:
        # What the high half of a product of 32 bits each is.
        assert number // by - (2 * number * inverse_of(by) >> 32) in (0, 1)


ORDERS = {
    "apart": (False, 140, 0),
    "packed-apart": (True, 140, 0),
    "packed-one-ahead": (True, 140, 1),
    "packed-three-ahead": (True, 140, 3),
    "of-a-sample-apart": (False, 2100, 0),
    "of-a-sample-one-ahead": (False, 2100, 1),
    "packed-of-a-sample-three-ahead": (True, 2100, 3),
}
"""Whether sequences are packed, most keys, and how many heads the statistics are ahead; without, the launch is cut in two.
"""


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_programs_changes_no_bit(kernels, monkeypatch, name):
    packed, keys, ahead = ORDERS[name]
    inputs = (
        packed_of([(1, keys), (70, 3), (0, 5), (7, 0)], heads=4, heads_kv=2)
        if packed
        else inputs_of(70, keys, batch=2, heads=4, heads_kv=2)
    )
    module = kernels.launch_prepare.__globals__
    monkeypatch.setitem(module, "LEAST_CHUNK", 128 * 64)
    lengths = {key: value for key, value in inputs.options.items() if key != "causal"}
    problem = kernels.quant_problem_of(inputs.q, inputs.k, inputs.v, **lengths)
    found = []
    for cut in (False, True):
        if cut:
            monkeypatch.setitem(module, "AHEAD_MIB", ahead * keys * 256 / 2**20)
        made = kernels.allocate(inputs.q, inputs.k, problem)
        tensors = [getattr(made, one) for one in ("q", "k", "v", "q_scale", "q_shift", "k_scale", "v_scale")]
        for x in (*tensors, made.parts, made.found, made.counters):
            x.view(torch.uint8).fill_(0x7F)
        launches = (kernels.launch_smooth, kernels.launch_quantise) if cut and not ahead else (kernels.launch_prepare,)
        for launch in launches:
            launch(inputs.q, inputs.k, inputs.v, made, problem)
            assert made.counter.item() == 0
            if launch is kernels.launch_smooth:
                made.arrived.fill_(-7)  # the second alone waits for nobody
        found.append([x.view(torch.uint8) for x in tensors])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_the_log_of_the_sum_has_what_smoothing_took_off(kernels):
    inputs = inputs_of(70, 300, kind="channel-bias")
    _, lse = attend(kernels, inputs)
    _, plain = attend(kernels, replace(inputs, k=inputs.k - inputs.k.float().mean(1, keepdim=True).bfloat16()))
    assert (lse - plain).abs().mean() > 1
    held(inputs, *attend(kernels, inputs), tile=64)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_rows_of_zeros_are_like_any_other(kernels, name):
    inputs = inputs_of(100, 140, heads=2)
    getattr(inputs, name)[:, 3:6] = 0
    held(inputs, *attend(kernels, inputs), tile=64)
    getattr(inputs, name)[:, :, 1] = 0
    held(inputs, *attend(kernels, inputs), tile=64)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow encountered", "ignore:All-NaN slice")
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_makes_nan_and_only_where_it_is_said(kernels, value):
    inputs = inputs_of(80, 140, heads=2)
    out, lse = attend(kernels, inputs)
    for name in "qkv":
        odd = replace(inputs, **{name: getattr(inputs, name).clone()})
        getattr(odd, name)[0, 5, 1, 7] = value
        found, sums = attend(kernels, odd)
        there = torch.zeros(out.shape, dtype=torch.bool)
        there[0, {"q": 5}.get(name, slice(None)), 1, {"v": 7}.get(name, slice(None))] = True
        assert found[there].isnan().all()
        assert torch.equal(found[~there], out[~there])
        of_rows = there.all(-1).transpose(1, 2)
        assert sums[of_rows].isnan().all()
        assert torch.equal(sums[~of_rows], lse[~of_rows])


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow encountered", "ignore:All-NaN slice")
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize("sampled", [True, False])
def test_a_key_that_is_not_finite_makes_nan_of_its_head_or_of_who_reads_its_tile(kernels, value, sampled):
    """In the sample, of all rows; else of those whose tile of 64 queries sees its tile of 128 keys."""
    inputs = inputs_of(300, 1100, heads=2, causal=True)
    out, lse = attend(kernels, inputs)
    sample = set(sample_of(1100).tolist())
    row = next(row for row in range(896, 1024) if (row in sample) is sampled)
    odd = replace(inputs, k=inputs.k.clone())
    odd.k[0, row, 1, 7] = value
    found, sums = attend(kernels, odd)
    there = torch.zeros(out.shape, dtype=torch.bool)
    there[0, 0 if sampled else 64 :, 1] = True  # query 96 is the first that sees key 896
    assert found[there].isnan().all()
    assert torch.equal(found[~there], out[~there])
    of_rows = there.all(-1).transpose(1, 2)
    assert sums[of_rows].isnan().all()
    assert torch.equal(sums[~of_rows], lse[~of_rows])


def test_keys_in_another_order_change_nothing_but_roundings(kernels):
    inputs = inputs_of(70, 256)
    order = torch.arange(256).view(2, 128).flip(0).flatten()
    out, lse = attend(kernels, inputs)
    found, sums = attend(kernels, replace(inputs, k=inputs.k[:, order], v=inputs.v[:, order]))
    torch.testing.assert_close(sums, lse, rtol=1e-5, atol=1e-5)
    assert (found - out).abs().mean() < 0.01 * out.abs().mean() + 0.002


def test_a_view_with_gaps_is_read_as_it_lies(kernels):
    inputs = inputs_of(70, 90, heads=2)
    apart = replace(inputs, **{name: torch.stack([getattr(inputs, name)] * 2, 2)[:, :, 1] for name in "qkv"})
    assert not apart.k.is_contiguous()
    assert all(torch.equal(*pair) for pair in zip(attend(kernels, apart), attend(kernels, inputs), strict=True))


def test_the_recipe_has_the_error_that_was_published():
    inputs = inputs_of(256, 4096, heads=1, dim=128)
    want = recipe_of(inputs)[0]
    assert 0.034 < distance(want, truth_of(inputs)[0]) <= 0.040


@pytest.mark.parametrize("kind", ["normal", "outliers", "channel-bias", "video"])
@pytest.mark.parametrize("keys", [513, 4096])
def test_the_mean_of_a_sample_is_as_good_as_that_of_all_keys(monkeypatch, kind, keys):
    cases = [inputs_of(128, keys, kind=kind, dim=dim) for dim in (64, 128)]

    def errors():
        return sum(distance(recipe_of(inputs)[0], truth_of(inputs)[0]) for inputs in cases)

    of_a_sample = errors()
    monkeypatch.setattr(quant_cases, "mean_of", lambda k: k.mean(1, keepdim=True))
    assert of_a_sample <= 1.05 * errors()


BAD = {
    "fp64": (
        {name: torch.zeros(1, 9, 1, 64).double() for name in "qkv"},
        r"q\.dtype=torch\.float64 is not supported; bfloat16 or float16$",
    ),
    "no-dims": (dict.fromkeys("qkv", torch.zeros(1, 9, 1, 0).half()), r"q\.shape=.* has no dims; 1 to 128 dims"),
    "many-dims": (
        dict.fromkeys("qkv", torch.zeros(1, 9, 1, 300).half()),
        r"q\.shape=.* has too many dims; 1 to 128 dims",
    ),
    "fp32": (
        {"q": torch.zeros(1, 9, 1, 64), "k": torch.zeros(1, 9, 1, 64), "v": torch.zeros(1, 9, 1, 64)},
        r"q\.dtype=torch\.float32 is not supported; bfloat16 or float16",
    ),
    "dims": (dict.fromkeys("qkv", torch.zeros(1, 9, 1, 136).half()), r"q\.shape=.* has too many dims; 1 to 128 dims"),
    "value-dims": ({"v": torch.zeros(1, 9, 1, 32).half()}, r"v\.shape\[-1\]=32 does not fit; 64, q's dims"),
    "heads": (dict.fromkeys("kv", torch.zeros(1, 9, 2, 64).half()), r"k\.shape\[-2\]=2 does not divide"),
    "scale": ({"scale": 0.0}, r"scale=0\.0 cannot be used; a finite number over 0"),
    "offsets": ({"max_seqlen_q": 3}, r"max_seqlen_q=given is passed without cu_seqlens_q"),
    "config": ({"config": "m64n64"}, r"config=m64n64 is not a short form; such as .*; the nearest valid one is m"),
    "rule": (
        {"config": "m64n64w8s2"},
        r"config=m64n64w8s2 is not valid, warps: it has 8 rows for each warp; .*; the nearest",
    ),
    "number": ({"config": 3}, "config=3 is not a configuration; a QuantConfig, its name or None"),
    "rows": (
        {name: torch.empty(1, 1, 1, 64).half().expand(1, 2**26, 64, 64) for name in "qkv"},
        r"q\.(shape|stride)=.*; at most",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line(kernels, name):
    change, said = BAD[name]
    q, k, v = torch.zeros(3, 1, 9, 1, 64).half()
    with pytest.raises(ValueError, match=f"^flash_quant_attention: {said}") as why:
        kernels.flash_quant_attention(**({"q": q, "k": k, "v": v} | change))
    assert "\n" not in str(why.value)


def test_offsets_are_looked_into_where_asked(kernels):
    inputs = packed_of([(3, 5), (4, 4)])
    inputs.cu_k[1] = 10
    with pytest.raises(ValueError, match=r"^flash_quant_attention: cu_seqlens_k\[2\]=9 falls from 10"):
        kernels.flash_quant_attention(
            inputs.q,
            inputs.k,
            inputs.v,
            **(packed_of([(3, 5), (4, 4)]).options | {"cu_seqlens_k": inputs.cu_k}),
            validate=True,
        )


def test_a_cpu_is_refused_where_kernels_are_compiled():
    inputs = inputs_of(9)
    with pytest.raises(ValueError, match=r"^flash_quant_attention: q\.device=cpu has no compiled kernels"):
        attend(compiled, inputs)


def test_as_a_function_in_a_model_it_is_the_same_and_its_quantisation_is_marked(kernels, monkeypatch):
    from contextlib import contextmanager

    import attnbench.kernels.flash.quant as package
    from attnbench.backends.flash_quant_call import QuantFunction
    from attnbench.workloads.attention.case import AttentionCase

    monkeypatch.setattr(package, "api", kernels, raising=False)
    inputs = inputs_of(seqlen=70, heads=2)
    case = AttentionCase(batch=1, seqlen=70, nheads=2, headdim=inputs.q.shape[-1], dtype="bf16")
    marked = []

    @contextmanager
    def preparing():
        marked.append("in")
        yield
        marked.append("out")

    attend_in_place = QuantFunction(case, SMALL)
    attend_in_place.preparing = preparing
    out, _ = attend(kernels, inputs)
    assert torch.equal(attend_in_place(inputs.q, inputs.k, inputs.v), out)
    assert marked == ["in", "out"]
