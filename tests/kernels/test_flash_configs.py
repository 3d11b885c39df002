"""The flash forward's configuration space: both spellings read back, every rule bites, the nearest is valid."""

from __future__ import annotations

import sys
import types
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.kernels.flash.config.defaults import TABLE, forward_config
from attnbench.kernels.flash.config.forward import HOPPER, WARPGROUPS, WORDS, ForwardConfig, parse
from attnbench.kernels.flash.config.space import (
    RULES,
    Shape,
    candidates,
    decode_candidates,
    fault,
    nearest,
    registers,
    shared_bytes,
    space,
)
from attnbench.kernels.shared.tiling import Grid

LONG = Shape(dim=128, dim_v=128, seqlen_q=4096, seqlen_k=4096)
FEW = Shape(dim=128, dim_v=128, seqlen_q=1, seqlen_k=8192, repeats=4)
VALUES = st.fixed_dictionaries(
    {
        name: st.sampled_from(tuple(column.spelled.accepted))
        for name, column in ForwardConfig.table().items()
        if name not in ("registers", "section_mib")
    }
    | {"registers": st.one_of(st.none(), st.integers(3, 31).map(lambda n: 8 * n)), "section_mib": st.integers(1, 999)}
)
CONFIGS = VALUES.map(
    lambda values: ForwardConfig(
        **values | ({"order": "ws"} if values["grid"] in ("few", "ticket") and values["order"] not in HOPPER else {})
    )
)


@settings(max_examples=200, derandomize=True)
@given(config=CONFIGS)
def test_both_spellings_are_read_back_exactly(config):
    assert parse(config.short) == config
    assert parse(config.full) == config
    assert not set(config.short) & set(",[] \t=")


@settings(max_examples=300, derandomize=True)
@given(
    text=st.one_of(
        st.text(max_size=30),
        st.from_regex(r"m(64|128)n\d{2,3}w[48]s[1-9](-(tma|ahead|pp|mix|r\d{2,3}|[a-z]{3}))*", fullmatch=True),
    )
)
def test_what_is_read_is_spelled_the_one_way(text):
    with pytest.raises(ValueError, match="; ") if not _reads(text) else nullcontext():
        config = parse(text)
        assert text in (config.short, config.full)


def _reads(text):
    try:
        parse(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m128n128w8", "is not a short form; such as m128n128w8s2-tma-pp"),
        ("m128n128w8s2-wibble", "has the word wibble; one of tma, ahead, ws, pp, decode, "),
        ("m128n128w8s2-tma-tma", "has loads twice; each once"),
        ("m128n128w8s2-ahead-tma", "is not how it is spelled; m128n128w8s2-tma-ahead"),
        ("m100n128w8s2", "block_m=100 is not known; one of 16, 32, 64, 128, 192, 256"),
        ("m128n128w8s2-r100", "registers=100 cannot be used; a multiple of 8 from 24 to 248"),
        ("m128n64w8s2-tma-few", "grid=few is not of order=plain; tiles, persistent, or order=ws or pp"),
        ("m128n64w8s2-tma-ahead-ticket", "grid=ticket is not of order=ahead; tiles, persistent, or order=ws or pp"),
        ("m128n128w8s2-l0", "section_mib=0 is out of range; 1 to 999"),
        ("block_m=128", "lacks block_n"),
        ("block_m=128 block_m=128", "has block_m=128; each once of block_m"),
        ("m0128n128w8s2", "is not how it is spelled; m128n128w8s2"),
    ],
)
def test_a_wrong_spelling_is_answered_with_what_is_wrong(text, said):
    with pytest.raises(ValueError, match=r".*; .*") as raised:
        parse(text)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("rule", "short", "shape"),
    [
        ("warpgroups", "m128n128w8s2-tma-pp", replace(LONG, capability=(10, 0))),
        ("warpgroups", "m128n128w8s2-tma-pp", replace(LONG, capability=(8, 0))),
        ("warpgroups", "m128n128w8s2-tma-pp", replace(LONG, item_bytes=4)),
        ("warpgroups", "m128n128w8s2-tma-ws", replace(LONG, dim_v=64)),
        ("warpgroups", "m128n128w8s2-pp", LONG),
        ("warpgroups", "m128n128w8s2-tma-pp-fused", LONG),
        ("warpgroups", "m128n32w8s2-tma-pp-mix", replace(LONG, dim=64, dim_v=64)),
        ("exponentials", "m128n128w8s2-tma-pp-mix", LONG),
        ("warpgroups", "m128n128w8s2-tma-pp-r128", LONG),
        ("warpgroups", "m128n64w12s2-tma-pp", LONG),
        ("warpgroups", "m64n64w4s2-tma-pp", LONG),
        ("warpgroups", "m128n64w8s1-tma-pp", LONG),
        ("warpgroups", "m192n64w12s2-tma-ahead", LONG),
        ("warpgroups", "m192n64w8s2", LONG),
        ("warpgroups", "m128n64w8s2-tma-split", LONG),
        ("warpgroups", "m128n64w8s2-tma-lazy", LONG),
        ("warpgroups", "m128n64w8s2-tma-deep", LONG),
        ("warpgroups", "m128n64w8s3-tma-joint", LONG),
        ("warpgroups", "m128n64w8s2-tma-ws-joint", LONG),
        ("warpgroups", "m128n64w8s3-tma-ws-joint-lazy-double", LONG),
        ("shared-memory", "m128n128w8s4-tma-ws-joint-pieces", replace(LONG, dim=192, dim_v=192)),
        ("warpgroups", "m128n64w8s2-tma-double", LONG),
        ("warpgroups", "m128n64w8s2-tma-ws-double", LONG),
        ("registers", "m192n128w12s2-tma-ws-lazy-double", replace(LONG, dim=64, dim_v=64)),
        ("warpgroups", "m256n32w16s2-tma-ws-split", LONG),
        ("warpgroups", "m128n64w8s2-tma-ws-split", replace(LONG, dim=64, dim_v=64)),
        ("ahead", "m128n128w8s2-tma-ahead", LONG),
        ("ahead", "m64n64w4s2-ahead-fused", replace(LONG, packed=True)),
        ("registers", "m192n128w12s2-tma-pp", LONG),
        ("registers", "m256n128w16s2-tma-ws", replace(LONG, dim=64, dim_v=64)),
        ("registers", "m256n32w16s2-tma-ws", LONG),
        ("registers", "m128n128w8s2-tma-ws", replace(LONG, dim=256, dim_v=256)),
        ("shared-memory", "m128n128w8s4-tma-pp", LONG),
        ("tma", "m128n64w8s2-tma-pp", replace(LONG, dim=60, dim_v=60)),
        ("registers", "m256n128w8s2-tma", LONG),
        ("shared-memory", "m128n128w8s4-tma", LONG),
        ("warps", "m64n64w8s2", LONG),
        ("narrow", "m128n32w8s2", LONG),
        ("register-cap", "m64n64w4s2-r248", replace(LONG, dim=64, dim_v=64)),
        ("mask", "m128n64w8s2-tma-fused", replace(LONG, packed=True)),
        ("tma", "m128n64w8s2-tma", replace(LONG, dim=60)),
        ("tma", "m128n64w8s2-tma", replace(LONG, capability=(8, 0))),
        ("decode", "m16n64w4s4-tma-decode", FEW),
        ("decode", "m16n64w4s4-decode-fused", FEW),
        ("decode", "m16n64w4s4-decode-l8", FEW),
        ("decode", "m256n64w4s4-decode", FEW),
        ("decode", "m64n64w4s2-x3", FEW),
        ("shared-memory", "m16n64w4s4-decode-x3", FEW),
        ("length", "m128n64w8s2", replace(LONG, seqlen_q=33)),
        ("length", "m192n64w12s2-tma-pp", replace(LONG, seqlen_q=127)),
        ("length", "m128n128w8s2-tma-pp", replace(LONG, seqlen_k=33)),
    ],
)
def test_every_rule_leaves_something_out_and_says_why(rule, short, shape):
    name, said = fault(parse(short), shape)
    assert name == rule
    assert said
    assert parse(short) not in space(shape)


def test_no_rule_goes_untested_and_most_bite_in_the_enumeration():
    shapes = [
        LONG,
        replace(LONG, dim=64, dim_v=64),
        replace(LONG, packed=True),
        replace(LONG, capability=(8, 0)),
        replace(LONG, seqlen_q=33),
    ]
    every = [*candidates(), *decode_candidates(4)]
    bitten = {found[0] for shape in shapes for config in every if (found := fault(config, shape))}
    assert bitten == set(RULES)


def test_the_space_is_large_enough_to_search_and_holds_each_once():
    found = space(LONG)
    assert len(found) == len(set(found)) >= 150
    assert len({config.short for config in found}) == len(found)
    narrow = space(replace(LONG, dim=64, dim_v=64))
    assert {(config.order, config.grid, config.warps) for config in narrow if config.order in HOPPER} == {
        *product(HOPPER, WORDS["grid"], WARPGROUPS)
    }
    found += space(replace(LONG, dim=96, dim_v=96))
    for name, words in WORDS.items():
        assert {getattr(config, name) for config in found} == set(words) - {"ahead", "decode"}
    assert {config.order for config in space(replace(LONG, capability=(8, 0)))} == {"plain", "ahead"}
    for dim in (32, 64, 256):
        assert len(space(replace(LONG, dim=dim, dim_v=dim))) >= 100


@settings(max_examples=30, derandomize=True)
@given(config=CONFIGS, dim=st.sampled_from((40, 64, 128, 256)), packed=st.booleans())
def test_the_nearest_is_valid_and_a_valid_one_of_the_space_is_its_own(config, dim, packed):
    shape = replace(LONG, dim=dim, dim_v=dim, packed=packed)
    assert fault(parse(nearest(config.short, shape)), shape) is None
    if config in space(shape):
        assert nearest(config.short, shape) == config.short


def test_the_nearest_changes_as_little_as_it_can():
    assert nearest("m128n128w8s4-tma-fused", LONG) == "m128n128w8s3-tma-fused"
    assert nearest("m128n64w8s3-tma-fuzed", LONG) == "m128n64w8s3-tma-fused"
    assert nearest("m128n128w8s2-tma-ahead-fused", LONG) == "m128n128w8s2-tma-fused"
    assert nearest("m128n128w8s2-pp", LONG) == "m128n128w8s2-tma-pp"
    assert nearest("m192n128w12s3-tma-ws-persistent", LONG) == "m192n64w12s3-tma-ws-persistent"
    assert nearest("m128n128w8s2-tma-pp", replace(LONG, capability=(10, 0))) == "m128n128w8s2-tma"


@pytest.mark.parametrize("order", ["plain", *HOPPER])
@pytest.mark.parametrize("length", [1, 16, 33, 127])
def test_sequences_shorter_than_any_tile_have_the_smallest_of_every_order(order, length):
    for seqlens in ({"seqlen_q": length}, {"seqlen_k": length}, {"seqlen_q": length, "seqlen_k": length}):
        assert order in {config.order for config in space(replace(LONG, **seqlens))}, seqlens


def test_defaults_are_valid_on_their_cards():
    for row in TABLE.rows("forward"):
        for major, packed in product(row.get("cards", [8]), (False, True)):
            shape = Shape(
                dim=row["dim"], dim_v=row["dim"], item_bytes=row["item_bytes"], packed=packed, capability=(major, 0)
            )
            assert major == 0 or fault(parse(row["config"]), shape) is None, row
        assert parse(row["config"]).order != "ahead"
        assert set(row) <= {
            "cards",
            "item_bytes",
            "dim",
            "seqlen",
            "rounds",
            "right",
            "triton",
            "config",
            "card",
            "date",
        }
        assert ("card" in row) == ("date" in row)


NARROW, SHORT = "m192n128w12s2-tma-ws-deep-lazy-ticket-l16", "m128n128w8s2-tma-ws-deep-lazy-ticket-l16"
PIECES, WIDE_PIECES = "m128n128w8s3-tma-ws-lazy-pieces-double-ticket-l16", "m128n64w8s2-tma-ws-pieces-ticket-l16"
TWO_STAGES = "m128n128w8s2-tma-ws-lazy-pieces-ticket-l16"
ONE_RING = "m128n128w8s3-tma-ws-joint-lazy-pieces-ticket-l16"
LONG_ROWS, WIDE = "m128n128w8s2-tma-ws-deep-lazy-ticket-l16", "m128n64w8s2-tma-ws-split-ticket-l16"


@pytest.mark.parametrize(
    ("dim", "causal", "others", "short"),
    [
        (40, "m192n128w12s3-tma-pp-ticket", NARROW, SHORT),
        (64, "m192n128w12s3-tma-pp-ticket", NARROW, SHORT),
        (96, PIECES, PIECES, "m128n128w8s2-tma-ws-ticket-l16"),
        (128, LONG_ROWS, LONG_ROWS, "m128n128w8s2-tma-ws-ticket-l16"),
        (160, TWO_STAGES, TWO_STAGES, TWO_STAGES),
        (192, ONE_RING, ONE_RING, WIDE_PIECES),
        (256, WIDE, WIDE, WIDE),
    ],
)
def test_on_hopper_the_default_is_its_own_kernel(dim, causal, others, short):
    given_ = (9, 0), 2, dim
    assert forward_config(*given_, 4096, right=True, hopper=True).short == causal
    assert forward_config(*given_, 4096, right=False, hopper=True).short == others
    assert forward_config(*given_, 1024, right=True, hopper=True).short == short
    for later in ((3, 7), (3, 9), (3, 10), (4, 0)):
        late = forward_config(*given_, 4096, right=True, hopper=True, triton=later).short
        assert late == (WIDE_PIECES if dim in (160, 192) else causal), (
            "Triton 3.6 is the latest that compiles them well"
        )
    assert forward_config(*given_, 4096, right=True, hopper=True, triton=(3, 6)).short == causal
    if dim == 160:
        assert forward_config(*given_, 512, right=True, hopper=True).short == WIDE_PIECES
        assert forward_config(*given_, 512, right=False, hopper=True).short == others
    for capability, item_bytes, hopper in (
        ((9, 0), 2, False),
        ((9, 0), 4, True),
        ((10, 0), 2, True),
        ((8, 0), 2, True),
        ((0, 0), 2, True),
    ):
        assert forward_config(capability, item_bytes, dim, 4096, right=True, hopper=hopper).order == "plain"


@pytest.mark.parametrize(
    ("version", "found"),
    [("3.6.0", (3, 6)), ("3.10.0+git9844da95", (3, 10)), ("4.0.dev20261101", (4, 0)), ("main", None), (None, None)],
)
def test_the_triton_that_is_imported_says_its_version(monkeypatch, version, found):
    """Whatever package it came from: nightly builds are `pytorch-triton`, and a copied folder is no package."""
    from attnbench.kernels.flash.config import defaults

    monkeypatch.setitem(sys.modules, "triton", version and types.SimpleNamespace(__version__=version))
    defaults.installed_triton.cache_clear()
    try:
        assert defaults.installed_triton() == found
    finally:
        defaults.installed_triton.cache_clear()


@pytest.mark.parametrize("causal", [True, False])
def test_few_tiles_take_small_ones_and_no_scheduler(causal):
    def short(dim, heads, seqlen, hopper=True):
        return forward_config((9, 0), 2, dim, seqlen, right=causal, grid=Grid(heads, seqlen, 132), hopper=hopper).short

    def many(dim, seqlen, hopper=True):
        return forward_config((9, 0), 2, dim, seqlen, right=causal, hopper=hopper).short

    for dim in (64, 96, 128):
        assert short(dim, 16, 512) == short(dim, 1, 64 * 132) == short(dim, 132, 1) == "m64n64w4s3-tma"
    eights, twelves = "m128n128w8s2-tma-ws-deep-lazy", "m192n128w12s2-tma-ws-deep-lazy"
    # 16 heads of 1024 rows are 128 tiles of 128 rows; 20 are 160, and 120 of 192; 22 are 132 of 192, and 23 are 138.
    assert [short(64, heads, 1024) for heads in (16, 20, 22, 23, 33)] == [eights, twelves, twelves, eights, eights]
    assert [short(96, heads, 1024) for heads in (16, 33)] == ["m128n128w8s2-tma-pp-pieces"] * 2
    assert [short(128, heads, 1024) for heads in (16, 33)] == ["m128n128w8s2-tma-pp"] * 2
    # With more there is something to schedule; other dims have no such row.
    for dim, heads in ((64, 34), (96, 34), (128, 34), (192, 1), (256, 1)):
        assert short(dim, heads, 1024) == many(dim, 1024)
    assert short(64, 16, 1024, hopper=False) == many(64, 1024, hopper=False)
    most = forward_config.cache_info().maxsize
    for heads in range(1, 2000):
        short(64, heads, 1)
    assert forward_config.cache_info().currsize == most, "shapes without end take no memory without end"


def test_estimates_are_those_worked_out_by_hand():
    config = parse("m128n128w8s2-tma-fused")
    # Queries 128 × 128, two stages of 128 keys and values of 128 dims, two bytes each.
    assert shared_bytes(config, LONG) == 2 * (128 * 128 + 2 * 128 * 256)
    # Output and scores 64 of 256 threads each, the weights in halves, and 32.
    assert registers(config, LONG) == 64 + 64 + 32 + 32
    config = parse("m128n128w8s2-tma-pp-persistent")
    # The next queries beside these; scores become the next weights in place, so only one tile of those is more.
    assert shared_bytes(config, LONG) == 2 * (2 * 128 * 128 + 2 * 128 * 256)
    assert registers(config, LONG) == 64 + 64 + 32 + 32
    # Of 256 dims there is no room for the next queries, but for half an output beside these.
    wide = replace(LONG, dim=256, dim_v=256)
    assert shared_bytes(replace(config, block_n=64), wide) == 2 * (128 * 256 + 2 * 64 * 512 + 128 * 128)
    # Split, half the queries have one place and the other half two; their other half is in 32 registers.
    split = parse("m128n64w8s2-tma-ws-split-ticket")
    assert shared_bytes(split, wide) == 2 * (3 * 128 * 128 + 2 * 64 * 512)
    assert registers(split, wide) == 128 + 32 + 16 + 32 + 32
    # A tile of keys more takes the place of the next half.
    assert shared_bytes(replace(split, rings="deep"), wide) == 2 * (2 * 128 * 128 + 3 * 64 * 256 + 2 * 64 * 256)
    # With a stage more there is no room for the next queries.
    assert shared_bytes(replace(config, stages=3), LONG) == 2 * (128 * 128 + 3 * 128 * 256)
    # Of 96 dims in pieces 96 columns are held, and stored weights take no registers but shared memory.
    pieces, narrow = parse("m192n128w12s2-tma-ws-pieces-ticket"), replace(LONG, dim=96, dim_v=96)
    assert shared_bytes(pieces, narrow) == 2 * 96 * (2 * 192 + 2 * 256)
    assert registers(pieces, narrow) == 48 + 64 + 32 + 32
    stored = replace(pieces, weights="stored")
    assert shared_bytes(stored, narrow) == shared_bytes(pieces, narrow) + 2 * 192 * 128
    assert registers(stored, narrow) == 48 + 64 + 32
    double = parse("m128n128w8s2-tma-ws-lazy-double")
    assert registers(double, LONG) == registers(replace(double, weights="held"), LONG) + 32 == 64 + 64 + 2 * 32 + 32
    assert shared_bytes(double, LONG) == shared_bytes(replace(double, weights="held"), LONG)
    # Three tiles of keys or values in all; of 160 dims the next queries fit beside them.
    joint = parse("m128n128w8s3-tma-ws-joint-lazy-pieces-ticket")
    for dim, queries in ((192, 1), (160, 2)):
        shape = replace(LONG, dim=dim, dim_v=dim)
        assert shared_bytes(joint, shape) == 2 * dim * (queries * 128 + 3 * 128)
        assert registers(joint, shape) == dim // 2 + 64 + 32 + 32
        assert joint in space(shape)
        assert shared_bytes(replace(joint, stages=2, rings="even"), shape) == 2 * dim * (128 + 4 * 128)


@pytest.mark.parametrize(
    ("dims", "pieces"),
    [
        ((64, 64), (64,)),
        ((72, 72), (64, 16)),
        ((80, 80), (64, 16)),
        ((72, 96), (64, 32)),
        ((104, 104), (128,)),
        ((144, 144), (128, 16)),
        ((160, 136), (128, 32)),
        ((192, 192), (128, 64)),
        ((200, 200), (256,)),
    ],
)
def test_pieces_are_powers_of_two_and_fewer_columns_than_one_tile(dims, pieces):
    shape = replace(LONG, dim=dims[0], dim_v=dims[1])
    assert shape.pieces == pieces
    found = fault(parse("m128n64w8s2-tma-ws-pieces"), shape)
    assert (found is None) == (len(pieces) == 2)
    assert found is None or found[1].startswith(f"has the order ws, which does not divide {dims[0]} dims into pieces")
