"""The word of a backward's cut, its space and its defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.kernels.flash.config import backward as configs
from attnbench.kernels.flash.config.backward import BackwardConfig, Tiles, parse_backward, why_not

H200 = (9, 0), 2, 128, 128
TILES = st.builds(Tiles, *(st.integers(1, 512) for _ in range(4)))
CONFIGS = st.builds(
    BackwardConfig,
    columns=TILES,
    rows=st.none() | TILES,
    loads=st.sampled_from(configs.WORDS["loads"]),
    order=st.sampled_from(configs.WORDS["order"]),
    sums=st.sampled_from(configs.WORDS["sums"]),
    mask=st.sampled_from(configs.WORDS["mask"]),
    add=st.sampled_from(configs.WORDS["add"]),
    masked_stages=st.integers(1, 9),
    registers=st.none() | st.integers(1, 255),
    section_mib=st.integers(1, 5000),
    precision=st.sampled_from(configs.WORDS["precision"]),
)


@given(CONFIGS)
def test_the_word_is_read_back_exactly_and_has_nothing_a_list_would_split(config):
    assert parse_backward(config.short) == config
    assert not set(config.short) & set(",[]() ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "b64x128w8s3",
        "m64n128w8s3-atomic",
        "b64x128w8s3-atomic-early",
        "b64x128w8s3-tma-atomic",
        "b64x128w8s3-atomic-m1",
        "b064x128w8s3-atomic",
        "b64x128w8s3-atomic-l24",
        "b64x128w8s3-atomic-ahead-late",
        "b٤x128w8s3-atomic",
    ],
)
def test_what_is_no_such_word_is_refused(text):
    with pytest.raises(ValueError, match=r"^(is not|lacks|has) [^;]*; "):
        parse_backward(text)


@pytest.mark.parametrize(
    ("name", "word", "known"),
    [
        ("order", "wss", "early, late, ahead, ws"),
        ("loads", "tmaa", "pointer, tma"),
        ("mask", "fuse", "apart, fused"),
        ("add", "first", "last, beside"),
        ("precision", "fp32", "ieee, tf32x3, tf32"),
    ],
)
def test_a_word_that_is_not_known_is_no_other_path(name, word, known):
    with pytest.raises(ValueError, match=f"^{name}={word} is not known; one of {known}$"):
        BackwardConfig(columns=Tiles(64, 128, 8, 2), **{name: word})


GOOD = parse_backward("b64x128w8s3-atomic-tma-fused")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"columns": Tiles(48, 128, 8, 3)}, "tile: block_m=48"),
        ({"columns": Tiles(64, 128, 2, 3)}, "tile: warps=2"),
        ({"rows": Tiles(64, 256, 8, 2)}, "tile: block_n=256"),
        ({"columns": Tiles(128, 128, 8, 2)}, "registers: sums and scores of columns"),
        ({"columns": Tiles(64, 128, 4, 2)}, "registers: sums and scores of columns"),
        ({"columns": Tiles(64, 128, 8, 4)}, "shared memory: columns"),
        ({"registers": 128}, "registers: sums and scores of columns"),
        ({"registers": 300}, "registers: a limit of 300"),
        ({"precision": "tf32"}, "precision: tf32"),
        ({"masked_stages": 9}, "stages: masked_stages"),
        ({"columns": Tiles(64, 64, 8, 2), "rows": Tiles(128, 128, 4, 2)}, "registers: sums and scores of rows"),
        ({"rows": Tiles(64, 64, 8, 2), "add": "beside"}, "add: beside"),
        ({"columns": Tiles(32, 128, 8, 2)}, "warpgroup: block_m=32"),
        ({"loads": "pointer"}, "mask: fused"),
    ],
)
def test_what_is_left_out_says_by_which_rule(change, rule):
    assert why_not(GOOD, *H200) is None
    said = why_not(replace(GOOD, **change), *H200)
    assert said is not None
    assert said.startswith(rule)


HOPPER = {64: "b128x128w8s2-atomic-tma-ws", 128: "b64x128w8s2-atomic-tma-ws", 256: "b64x64w8s2-atomic-tma-ws"}


@pytest.mark.parametrize("dim", [8, 64, 72, 128, 136, 256])
def test_the_kernel_for_hopper_takes_the_tiles_that_its_dims_leave_room_for(dim):
    right = HOPPER[min(width for width in HOPPER if width >= dim)]
    assert why_not(parse_backward(right), (9, 0), 2, dim, 64) is None
    for wrong in {*HOPPER.values()} - {right}:
        said = why_not(parse_backward(wrong), (9, 0), 2, dim, 64) or ""
        assert said.startswith("ws: ")
        assert right[1:].split("s")[0] in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mask": "fused"}, "ws: loads, mask, add, registers and rows"),
        ({"add": "beside"}, "ws: loads, mask, add, registers and rows"),
        ({"registers": 168}, "ws: loads, mask, add, registers and rows"),
        ({"loads": "pointer"}, "ws: loads, mask, add, registers and rows"),
        ({"rows": Tiles(128, 64, 8, 2)}, "ws: loads, mask, add, registers and rows"),
        ({"columns": Tiles(64, 64, 8, 2)}, "ws: 64x64w8s2"),
        ({"columns": Tiles(64, 128, 4, 2)}, "ws: 64x128w4s2"),
        ({"columns": Tiles(64, 128, 8, 4)}, "ws: 64x128w8s4"),
        ({"sums": "direct"}, "sums: direct requires ws and over 128 dims"),
    ],
)
def test_what_the_kernel_for_hopper_has_not_is_said(change, said):
    good = parse_backward(HOPPER[128])
    assert why_not(replace(good, section_mib=8), *H200) is None
    assert (why_not(replace(good, **change), *H200) or "").startswith(said)


@pytest.mark.parametrize(
    ("card", "item_bytes", "dim"),
    [((8, 0), 2, 128), ((10, 0), 2, 128), ((0, 0), 2, 128), ((9, 0), 4, 128), ((9, 0), 2, 264), ((9, 0), 2, 100)],
)
def test_the_kernel_for_hopper_is_for_hopper_and_up_to_256_dims_of_16_bits(card, item_bytes, dim):
    for short in HOPPER.values():
        assert (why_not(parse_backward(short), card, item_bytes, dim, dim) or "").startswith("ws: ")


@pytest.mark.parametrize("sums", ["direct", "carried"])
def test_sums_of_dq_from_registers_are_for_the_kernel_for_hopper_over_128_dims(sums):
    config = parse_backward(f"{HOPPER[256]}-{sums}")
    assert config == replace(parse_backward(HOPPER[256]), sums=sums)
    assert why_not(config, (9, 0), 2, 136, 200) is None
    assert config.short in {one.short for one in configs.backward_space((9, 0), 2, 256, 256)}
    for wrong, dim in ((config, 128), (replace(config, order="early"), 256)):
        assert why_not(wrong, (9, 0), 2, dim, dim) == f"sums: {sums} requires ws and over 128 dims"


def test_three_tiles_of_128_rows_have_no_room_at_64_dims():
    said = why_not(parse_backward("b128x128w8s3-atomic-tma-ws"), (9, 0), 2, 64, 64) or ""
    assert said.startswith("shared memory: columns take")


def test_a_tuner_sees_the_kernel_for_hopper():
    for dim, short in HOPPER.items():
        found = [config.short for config in configs.backward_space((9, 0), 2, dim, dim)]
        assert short in found
        assert {short.replace("s2", f"s{stages}") for stages in {64: (2,), 128: (2, 3), 256: (1, 2)}[dim]} <= {*found}
        for card, deterministic in (((8, 0), False), ((9, 0), True)):
            others = configs.backward_space(card, 2, dim, dim, deterministic=deterministic)
            assert not any(config.order == "ws" for config in others)


def test_an_older_card_has_no_tma_and_less_shared_memory():
    assert why_not(GOOD, (8, 0), 2, 128, 128) == "tma: only sm_90 and later have it"
    plain = replace(GOOD, loads="pointer", mask="apart")
    assert why_not(plain, *H200) is None
    assert (why_not(plain, (8, 6), 2, 128, 128) or "").startswith("shared memory")


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_the_space_has_the_default_and_only_what_the_rules_leave(capability, dim, deterministic):
    given_ = capability, 2, dim, dim
    found = list(configs.backward_space(*given_, deterministic=deterministic))
    assert configs.backward_config(capability, 2, dim, deterministic=deterministic, hopper=True) == found[0]
    assert len(found) == len({config.short for config in found})
    assert all(why_not(config, *given_) is None and config.deterministic == deterministic for config in found)
    assert len(found) >= 5


def test_on_hopper_the_default_is_its_own_kernel():
    for dim in (8, 64, 72, 128, 136, 256):
        width = min(width for width in HOPPER if width >= dim)
        short = HOPPER[width] + "-carried" * (width == 256)
        for packed in (False, True):
            assert configs.backward_config((9, 0), 2, dim, packed=packed, hopper=True).short == short
        for card, item_bytes, changes in (
            ((9, 0), 2, {}),
            ((9, 0), 2, {"hopper": True, "deterministic": True}),
            ((9, 0), 4, {"hopper": True}),
            ((10, 0), 2, {"hopper": True}),
        ):
            assert configs.backward_config(card, item_bytes, dim, **changes).order != "ws"


def test_every_card_precision_and_dim_has_a_default_that_the_rules_leave():
    for major in (0, 8, 9, 10, 12):
        for item_bytes in (2, 4):
            for dim in (1, 64, 65, 256):
                for packed in (False, True):
                    for deterministic in (False, True):
                        config = configs.backward_config(
                            (major, 0), item_bytes, dim, deterministic=deterministic, packed=packed
                        )
                        assert config.deterministic == deterministic
                        assert why_not(config, (major, 0), item_bytes, dim, dim) is None, (major, item_bytes, dim)
