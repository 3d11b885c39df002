"""The language of launch configurations, on a family that is a table alone, and what every family answers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Annotated, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.backends.registry import all_backends
from attnbench.errors import UsageError
from attnbench.kernels.hstu.paged.configs import PagedConfig, nearest_config
from attnbench.kernels.shared.configs import Defaults, LaunchConfig, Spelled, nearest
from attnbench.kernels.shared.family import Family, Misnamed, Part
from attnbench.workloads.base import load_workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles(LaunchConfig):
    EXAMPLE: ClassVar[str] = "16x8"

    rows: Annotated[int, Spelled("{}", (8, 16, 32))]
    keys: Annotated[int, Spelled("x{}", (8, 16, 32))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Toy(LaunchConfig):
    EXAMPLE: ClassVar[str] = "t16w4-none-tma"

    rows: Annotated[int, Spelled("t{}", (8, 16, 32))]
    warps: Annotated[int, Spelled("w{}", (4, 8))]
    cap: Annotated[int | None, Spelled("r{}", range(24, 249, 8))] = None
    tail: Annotated[Tiles | None, Spelled("-q{}", none="none")] = None
    loads: Annotated[str, Spelled("-{}", ("pointer", "tma"))] = "pointer"
    order: Annotated[str, Spelled("-{}", ("plain", "ahead", "ws"), far=3)] = "plain"
    split: Annotated[bool, Spelled("-{}", words={True: "split"})] = False
    share: Annotated[float, Spelled("-share{}")] = 1.5
    unnamed: int = 0
    "no part of a name"


CONFIGS = st.builds(
    Toy,
    rows=st.sampled_from((8, 16, 32)),
    warps=st.sampled_from((4, 8)),
    cap=st.none() | st.integers(3, 31).map(lambda n: 8 * n),
    tail=st.none() | st.builds(Tiles, rows=st.sampled_from((8, 16)), keys=st.sampled_from((16, 32))),
    loads=st.sampled_from(("pointer", "tma")),
    order=st.sampled_from(("plain", "ahead", "ws")),
    split=st.booleans(),
    share=st.sampled_from((0.5, 1.5, 12.0)),
)


@given(config=CONFIGS)
def test_both_forms_are_read_back_exactly(config):
    assert Toy.parse(config.short) == config
    assert Toy.parse(config.full) == config
    assert not set(config.short) & set(",[]+= ")


@given(config=CONFIGS)
def test_words_in_another_order_say_the_same_and_are_answered_with_the_one_spelling(config):
    head, *words = config.short.split("-")
    for order in list(permutations(words))[:6]:
        text = "-".join([head, *order])
        assert Toy.parse(text, spelled=False) == config
        if text != config.short:
            with pytest.raises(ValueError, match=rf"^is not how it is spelled; {config.short}$"):
                Toy.parse(text)


@given(text=st.text(max_size=30) | st.from_regex(r"t(8|16)w[48](r\d{2,3})?(-[a-z0-9]{1,6}){0,3}", fullmatch=True))
def test_whatever_is_read_is_spelled_so_and_whatever_is_not_is_one_line(text):
    try:
        config = Toy.parse(text)
    except ValueError as why:
        said = str(why).removesuffix(text)
        assert "; " in said
        assert "\n" not in said.replace(text, "")
        return
    assert text in (config.short, config.full)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a short form; such as t16w4-none-tma"),
        ("t16", "is not a short form; such as t16w4-none-tma"),
        ("t16w4", "lacks tail; such as t16w4-none-tma"),
        ("t16w4-none-tmaa", "has the word tmaa; one of none, qNxN, tma, ahead, ws, split, shareN"),
        ("t16w4-none-", "has the word of no letters; one of none, "),
        ("t16w4-none-q8x8", "has tail twice; each once"),
        ("t16w4-none-ahead-ws", "has order twice; each once"),
        ("t16w4-none-plain", "is not how it is spelled; t16w4-none"),
        ("t٤w4-none", "is not a short form; "),
        ("t12w4-none", "rows=12 is not known; one of 8, 16, 32"),
        ("t16w4-q8x7", "keys=7 is not known; one of 8, 16, 32"),
        ("t16w4r25-none", "cap=25 cannot be used; a multiple of 8 from 24 to 248"),
        ("t16w4-none-share1", "is not how it is spelled; t16w4-none-share1.0"),
        ("rows=16", "lacks warps, cap, tail, loads, order, split, share; all of rows, "),
        ("rows=16 rows=16", "has rows=16; each once of rows, warps, "),
        ("rows=1x warps=4", "has rows=1x; a whole number"),
        ("split=yes", "has split=yes; true or false"),
        ("unnamed=1", "has unnamed=1; each once of "),
    ],
)
def test_a_wrong_name_is_answered_with_what_is_wrong_and_what_is_accepted(text, said):
    with pytest.raises(ValueError, match="; ") as caught:
        Toy.parse(text)
    assert str(caught.value).startswith(said)


def test_a_change_says_only_what_is_named_defaults_too():
    assert Toy.read_part("t16w8-none-plain") == {"rows": 16, "warps": 8, "tail": None, "order": "plain"}
    assert Toy.spell(Toy.read_part("t16w8-none-pointer-plain")) == "t16w8-none-pointer-plain"
    with pytest.raises(ValueError, match=r"^is not how it is spelled; t16w8-none-pointer-plain$"):
        Toy.read_part("t16w8-none-plain-pointer")


def test_the_distance_counts_factors_of_two_and_words():
    base = Toy(rows=8, warps=4)
    assert base.distance(base) == 0
    assert base.distance(Toy(rows=32, warps=4)) == 2
    assert base.distance(Toy(rows=8, warps=4, loads="tma")) == 2
    assert base.distance(Toy(rows=8, warps=4, order="ws")) == 3
    assert base.distance(Toy(rows=8, warps=4, cap=128)) == 2


def test_the_first_row_that_fits_is_taken(tmp_path):
    path = tmp_path / "defaults.toml"
    path.write_text("""
[[forward]]
cards = [9]
item_bytes = 2
dim = 64
config = "t32w8-none-tma-ws"
[[forward]]
item_bytes = 2
dim = 64
seqlen = 1024
page_size = 64
config = "t16w4-none"
[[forward]]
config = "t8w4-none"
""")
    table = Defaults(path)

    def first(**asked):
        return table.first("forward", Toy, **asked).short

    assert first(cards=9, item_bytes=2, dim=64) == "t32w8-none-tma-ws"
    assert first(cards=8, item_bytes=2, dim=64, seqlen=1024, page_size=64) == "t16w4-none"
    for other in ({"dim": 65}, {"seqlen": 1025}, {"page_size": 32}, {"item_bytes": 4}):
        asked = {"cards": 8, "item_bytes": 2, "dim": 64, "seqlen": 1024, "page_size": 64}
        assert first(**asked | other) == "t8w4-none"
    portable = table.first("forward", Toy, cards=9, item_bytes=2, dim=64, also=lambda config: config.order != "ws")
    assert portable.short == "t16w4-none"


class ToyPart(Part[int]):
    side, hint = "forward", "t…"

    def begins(self, text):
        return text.startswith("t")

    def space(self, shape):
        return {config.short: config.values for config in (Toy(rows=8, warps=4), Toy(rows=shape, warps=8))}

    def read(self, text, shape):
        return Toy.parse(text).values

    def tuned(self, shape):
        return f"t{shape}w8-none"


def test_a_family_of_one_table_is_listed_read_and_refused():
    family = Family((ToyPart(),))
    assert list(family.space(16, "fwd")) == ["t8w4-none", "t16w8-none"]
    assert family.default(16, "fwd") in family.space(16, "fwd")
    assert family.read("t16w8-none-tma", 16, "fwd")["loads"] == "tma"
    with pytest.raises(Misnamed) as caught:
        family.read("t16w8-nona", 16, "fwd")
    assert (caught.value.text, caught.value.near) == ("t16w8-nona", "t16w8-none")
    with pytest.raises(Misnamed, match=r"^config=t8w4-none\+t8w4-none has two parts for one side; t…$"):
        family.read("t8w4-none+t8w4-none", 16, "fwd")


# ── what the shipped families answer ─────────────────────────────────────────────────────────────────

MISSPELT = [
    ("flash-triton", "fwd", "m128n128w8s2-tma-wx", "m128n128w8s2-tma-ws"),
    ("flash-triton", "bwd", "b64x128w8s2-atomik-tma-ws", "b64x128w8s2-atomic-tma-ws"),
    ("flash-triton", "fwd-bwd", "m128n128w8s2-tma-ws+b64x128w8s2-atomic-tma-wz", "b64x128w8s2-atomic-tma-ws"),
    ("hstu-triton", "fwd", "f128x64w8s3-aheed", "f128x64w8s3-ahead"),
    ("hstu-triton", "bwd", "deterministic-c64x128w8s2-wss", "deterministic-c64x128w8s2"),
    ("hstu-bsa-triton", "fwd", "pases", "passes"),
    ("hstu-bsa-triton", "fwd", "s64x16w5", "s64x16w4"),
    ("hstu-bsa-triton", "bwd", "s192x64w12s4-wss", "s192x64w12s4-ws"),
]


@pytest.mark.parametrize(("name", "mode", "text", "near"), MISSPELT)
def test_a_misspelt_configuration_is_answered_with_the_nearest_in_one_line(name, mode, text, near):
    backend = all_backends()[name]
    workload = load_workload(backend.workload)
    dims = {"headdim": 128} if workload.name == "attention" else {"attn_dim": 128, "linear_dim": 128}
    case = workload.case({**dims, "seqlen": 4096, "mode": mode, "dtype": "bf16"})
    with pytest.raises(UsageError, match=rf"^{name}: config=\S+ .*; .*; the nearest valid one is {near}$") as caught:
        backend.config_of(text, case)
    assert "\n" not in str(caught.value)
    backend.config_of(near, case)


def test_the_paged_kernel_is_configured_by_the_same_language():
    config = PagedConfig.parse("m128n64w8s3-ahead-tma")
    assert (config.order, config.loads, config.short) == ("ahead", "tma", "m128n64w8s3-ahead-tma")
    assert nearest_config("m128n64w8s3-aheed-tma") == "m128n64w8s3-ahead-tma"
    words = "newN, ahead, ws, tma, exp, tf32x3, tf32, leastN"
    with pytest.raises(ValueError, match=f"^has the word aheed; one of {words}$"):
        PagedConfig.parse("m128n64w8s3-aheed-tma")


def test_nothing_is_near_where_there_is_nothing():
    assert nearest("m128", []) == ""
