"""AttentionCase: errors of invalid fields, unique names, and the round trip through JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnbench
from attnbench.errors import UsageError
from attnbench.workloads.attention import WORKLOAD, AttentionCase
from attnbench.workloads.base import load_workload, workload_names

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(attnbench.__file__).parents[1])}
BASE = {"batch": 2, "seqlen": 1024, "nheads": 8, "headdim": 64}


def case(**values):
    return WORKLOAD.case(BASE | values)


def axis(name):
    return next(axis for axis in WORKLOAD.axes if axis.name == name)


def test_found_by_folder():
    assert "attention" in workload_names()
    assert load_workload("attention") is WORKLOAD


@pytest.mark.parametrize("module", ["", ".case", ".work", ".axes"])
def test_imports_without_torch(module):
    code = (
        "import sys\n"
        "for name in ('torch', 'triton', 'numpy', 'pandas'): sys.modules[name] = None\n"
        f"import attnbench.workloads.attention{module}\n"
        "from attnbench.workloads.attention import WORKLOAD\n"
        "case = WORKLOAD.case({'batch': 3, 'lengths': 'zipf', 'causal': True})\n"
        "assert WORKLOAD.work(case).flops > 0 and case.id and WORKLOAD.shrink(case, 0.5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr


def test_axes_are_the_fields_and_their_defaults_make_a_case():
    made = WORKLOAD.case({})
    assert [axis.name for axis in WORKLOAD.axes] == list(made.to_dict())
    assert made.id == "b2-s1024-h8-d64-fp16-fwd"


def test_fields_follow_their_partner():
    made = case(nheads=6, headdim=48)
    assert (made.seqlen_k, made.nheads_kv, made.headdim_v) == (1024, 6, 48)
    assert made.scale == pytest.approx(1 / 48**0.5, rel=1e-15)
    assert case(nheads=8, nheads_kv=2).group_size == 4


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"causal": True}, "b2-s1024-h8-d64-fp16-causal-fwd"),
        (
            {"seqlen": 1, "seqlen_k": 4096, "nheads_kv": 2, "headdim_v": 128, "dtype": "bf16"},
            "b2-s1-k4096-h8-kv2-d64-dv128-bf16-fwd",
        ),
        ({"window": (256, 0), "mode": "fwd-bwd"}, "b2-s1024-h8-d64-fp16-w256_0-fwd-bwd"),
        ({"window": (-1, 3)}, "b2-s1024-h8-d64-fp16-winf_3-fwd"),
        ({"lengths": "zipf", "mode": "bwd"}, "b2-s1024-h8-d64-fp16-zipf-bwd"),
        ({"lengths": "100:7"}, "b2-s1024-h8-d64-fp16-len100_7-fwd"),
        ({"lengths": "100/9:7/7"}, "b2-s1024-h8-d64-fp16-len100x9_7-fwd"),
    ],
)
def test_id(values, name):
    assert case(**values).id == name


def test_ids_of_a_grid_are_unique_and_fit_a_file_name():
    grid = {
        "batch": [1, 3],
        "seqlen": [127, 128],
        "seqlen_k": [None, 129],
        "nheads": [4],
        "nheads_kv": [None, 1, 2],
        "headdim": [64],
        "headdim_v": [None, 63],
        "causal": [False, True],
        "window": [None, (5, 0), (5, 7), (-1, 7), (0, -1)],
        "dtype": ["fp32", "fp16", "bf16"],
        "mode": ["fwd", "bwd", "fwd-bwd"],
        "lengths": ["full", "uniform", "zipf"],
    }
    cases = {WORKLOAD.case(dict(zip(grid, values, strict=True))) for values in product(*grid.values())}
    ids = {made.id for made in cases}
    assert len(ids) == len(cases) > 2000
    assert all(name.replace("-", "").replace("_", "").isalnum() and name.islower() for name in ids)


def test_many_explicit_lengths_keep_the_name_short_and_unique():
    lengths = [":".join(str(1 + (i * step) % 900) for i in range(64)) for step in (7, 11)]
    first, second = (case(batch=64, lengths=text) for text in lengths)
    assert first.id != second.id
    assert max(len(first.id), len(second.id)) < 80


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "batch": st.integers(1, 4),
            "seqlen": st.integers(1, 300),
            "seqlen_k": st.none() | st.integers(1, 300),
            "nheads": st.just(6),
            "nheads_kv": st.sampled_from([None, 1, 2, 3, 6]),
            "headdim": st.integers(1, 300),
            "headdim_v": st.none() | st.integers(1, 300),
            "causal": st.booleans(),
            "window": st.none() | st.integers(-1, 400) | st.tuples(st.integers(-1, 400), st.integers(-1, 400)),
            "dtype": st.sampled_from(["fp32", "fp16", "bf16"]),
            "mode": st.sampled_from(["fwd", "bwd", "fwd-bwd"]),
            "lengths": st.sampled_from(["full", "uniform", "zipf"]),
        },
    )
)
def test_json_round_trip_is_exact(values):
    values = values | ({"nheads": 6} if values.get("nheads_kv") else {})
    made = WORKLOAD.case(values)
    data = made.to_dict()
    assert WORKLOAD.case(json.loads(json.dumps(data))) == made
    assert None not in [value for name, value in data.items() if name != "window"]


@pytest.mark.parametrize(
    ("causal", "given_window", "window", "reach"),
    [
        (False, None, None, (None, None)),
        (True, None, None, (None, 0)),
        (False, 128, (128, 128), (128, 128)),
        (True, 128, (128, 0), (128, 0)),
        (False, "128", (128, 128), (128, 128)),
        (True, "128:64", (128, 0), (128, 0)),
        (False, [128, -1], (128, -1), (128, None)),
        (False, (-1, 0), (-1, 0), (None, 0)),
        (False, (0, 0), (0, 0), (0, 0)),
        (False, -1, None, (None, None)),
        (True, "-1:5", None, (None, 0)),
        (False, "none", None, (None, None)),
    ],
)
def test_window_has_one_spelling(causal, given_window, window, reach):
    made = case(causal=causal, window=given_window)
    assert made.window == window
    assert made.reach == reach


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": 0}, "attention: batch=0 is out of range; a whole number from 1 to 16777216"),
        ({"seqlen": -5}, "attention: seqlen=-5 is out of range; a whole number from 1 to 16777216"),
        ({"headdim": 10**9}, "attention: headdim=1000000000 is out of range; a whole number from 1 to 16777216"),
        ({"seqlen": 1024.0}, "attention: seqlen=1024.0 is not a whole number; a whole number from 1 to 16777216"),
        ({"batch": True}, "attention: batch=True is not a whole number; a whole number from 1 to 16777216"),
        ({"seqlen": "1024"}, "attention: seqlen=1024 is not a whole number; a whole number from 1 to 16777216"),
        ({"seqlen": None}, "attention: seqlen=None is not a whole number; a whole number from 1 to 16777216"),
        ({"nheads_kv": 3}, "attention: nheads_kv=3 does not divide nheads=8; a divisor of nheads"),
        ({"nheads_kv": 16}, "attention: nheads_kv=16 does not divide nheads=8; a divisor of nheads"),
        ({"causal": 1}, "attention: causal=1 is not a boolean; true or false"),
        ({"dtype": "fp61"}, "attention: dtype=fp61 is not known; one of bf16, fp16, fp32; did you mean fp16?"),
        ({"mode": "forward"}, "attention: mode=forward is not known; one of bwd, fwd, fwd-bwd"),
        ({"window": (-2, 0)}, "attention: window=-2:0 is negative; keys to the left and right from 0, -1"),
        ({"window": (1, 2, 3)}, "attention: window=(1, 2, 3) is not a window; two whole numbers"),
        ({"window": 1.5}, "attention: window=1.5 is not a window; two whole numbers"),
        ({"window": "a:b"}, "attention: window=a:b is not a window; none, LEFT or LEFT:RIGHT in keys"),
        ({"lengths": "gauss"}, "attention: lengths=gauss is not known; full, uniform, zipf, or a length"),
        ({"lengths": None}, "attention: lengths=None is not known; full, uniform, zipf, or a length"),
        ({"lengths": "5"}, "attention: lengths=5 names 1 sequences, batch=2; a length for each sequence"),
        ({"lengths": "5:0"}, "attention: lengths=5:0 has 0/0 out of range; queries from 1 to seqlen=1024"),
        ({"lengths": "5:1025"}, "attention: lengths=5:1025 has 1025/1025 out of range; queries from 1 to seqlen=1024"),
        (
            {"lengths": "5:6", "seqlen_k": 9},
            "attention: lengths=5:6 names no keys where seqlen_k=9 differs from seqlen=1024; queries/keys of each",
        ),
        ({"sequence": 5}, "attention: axis=sequence is not known; one of batch, causal,"),
    ],
)
def test_refusals_name_field_value_and_what_is_accepted(values, message):
    with pytest.raises(UsageError) as caught:
        case(**values)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("batch", "16", 16),
        ("seqlen_k", "4096", 4096),
        ("causal", "true", True),
        ("causal", "false", False),
        ("window", "none", None),
        ("window", "256", 256),
        ("window", "256:0", (256, 0)),
        ("window", "-1:9", (-1, 9)),
        ("dtype", "bf16", "bf16"),
        ("mode", "fwd-bwd", "fwd-bwd"),
        ("lengths", "zipf", "zipf"),
        ("lengths", "100:200:7", "100:200:7"),
        ("lengths", "1/2:3/4", "1/2:3/4"),
    ],
)
def test_axis_reads(name, text, value):
    assert axis(name).parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("batch", "0", "a whole number from 1 to 16777216"),
        ("batch", "-3", "a whole number from 1 to 16777216"),
        ("seqlen", "1k", "a whole number from 1 to 16777216"),
        ("seqlen", "9" * 5000, "a whole number from 1 to"),
        ("headdim", "", "a whole number from 1"),
        ("causal", "1", "true or false"),
        ("window", "1:2:3", "none, LEFT or LEFT:RIGHT"),
        ("window", "-2", "none, LEFT or LEFT:RIGHT"),
        ("window", "", "none, LEFT or LEFT:RIGHT"),
        ("dtype", "float8", "one of fp32, fp16, bf16"),
        ("mode", "forward", "one of fwd, bwd, fwd-bwd"),
        ("lengths", "100,200", "full, uniform, zipf, or a length"),
        ("lengths", "100:", "full, uniform, zipf"),
        ("lengths", "9" * 5000, "full, uniform, zipf"),
    ],
)
def test_axis_says_what_it_accepts(name, text, accepted):
    with pytest.raises(ValueError) as caught:
        axis(name).parse(text)
    assert str(caught.value).startswith(accepted)


def test_dense_sequences_are_all_full():
    made = case(batch=3, seqlen=5, seqlen_k=9)
    assert not made.packed
    assert made.sequences == ((5, 9),) * 3


@pytest.mark.parametrize("kind", ["uniform", "zipf"])
def test_drawn_lengths_depend_on_the_shape_alone(kind):
    made = case(batch=50, lengths=kind)
    assert made.packed
    assert all(1 <= queries <= 1024 and keys == queries for queries, keys in made.sequences)
    for change in ({"dtype": "bf16"}, {"mode": "bwd"}, {"causal": True}, {"nheads": 4, "nheads_kv": 4}):
        assert replace(made, **change).sequences == made.sequences
    assert replace(made, seqlen=1000, seqlen_k=1000).sequences != made.sequences


def test_drawn_lengths_are_the_same_on_every_machine():
    assert case(batch=4, lengths="uniform").sequences == ((552, 552), (651, 651), (954, 954), (777, 777))
    assert case(batch=4, lengths="zipf").sequences == ((34, 34), (75, 75), (71, 71), (1, 1))


def test_distributions_have_their_shape():
    uniform = sorted(queries for queries, _ in case(batch=4000, lengths="uniform").sequences)
    zipf = sorted(queries for queries, _ in case(batch=4000, lengths="zipf").sequences)
    assert uniform[2000] == pytest.approx(512, abs=40)
    assert zipf[2000] == pytest.approx(1025**0.5, rel=0.2)
    assert zipf.count(1) / 4000 == pytest.approx(0.1, abs=0.02)
    assert max(zipf) > 900


def test_keys_have_lengths_of_their_own_where_seqlen_k_differs():
    made = case(batch=40, seqlen=16, seqlen_k=900, lengths="uniform")
    assert all(1 <= queries <= 16 and 1 <= keys <= 900 for queries, keys in made.sequences)
    assert max(keys for _, keys in made.sequences) > 16


def test_explicit_lengths_have_one_spelling():
    assert case(lengths="007:9").lengths == "7:9"
    assert case(lengths="7/7:9/9") == case(lengths="7:9")
    assert case(lengths="7/8:9").sequences == ((7, 8), (9, 9))
    assert case(seqlen_k=2000, lengths="7/7:9/1500").sequences == ((7, 7), (9, 1500))


@pytest.mark.parametrize(
    ("values", "factor", "expected"),
    [
        ({"batch": 8}, 0.5, {"batch": 4, "seqlen": 1024}),
        ({"batch": 8}, 0.3, {"batch": 2, "seqlen": 1024}),
        ({"batch": 1}, 0.5, {"batch": 1, "seqlen": 512, "seqlen_k": 512}),
        ({"batch": 2}, 0.25, {"batch": 1, "seqlen": 512}),
        ({"batch": 1, "seqlen": 1, "seqlen_k": 1000}, 0.5, {"seqlen": 1, "seqlen_k": 448}),
        ({"batch": 1, "seqlen": 60}, 0.5, {"seqlen": 30}),
        ({"batch": 4, "lengths": "9:8:7:6"}, 0.5, {"batch": 2, "lengths": "9:8"}),
        ({"batch": 1, "seqlen": 100, "lengths": "90"}, 0.5, {"seqlen": 50, "lengths": "50"}),
    ],
)
def test_shrink_takes_sequences_first_then_length(values, factor, expected):
    smaller = WORKLOAD.shrink(case(**values), factor)
    assert {name: getattr(smaller, name) for name in expected} == expected


@pytest.mark.parametrize(("values", "factor"), [({}, 1.0), ({}, 0.0), ({}, -1.0), ({"batch": 1, "seqlen": 1}, 0.5)])
def test_shrink_gives_nothing_where_nothing_smaller_is_left(values, factor):
    assert WORKLOAD.shrink(case(**values), factor) is None


def test_case_is_frozen_and_hashable():
    made = AttentionCase(batch=1, seqlen=2, nheads=3, headdim=4)
    assert made in {made}
    with pytest.raises(AttributeError):
        made.batch = 2


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "batch": st.sampled_from([1, 3]),
            "seqlen": st.sampled_from([1, 200]),
            "seqlen_k": st.sampled_from([1, 200, 300]),
            "nheads": st.sampled_from([4, 16]),
            "nheads_kv": st.sampled_from([2, 4]),
            "headdim_v": st.sampled_from([32, 64]),
            "causal": st.booleans(),
            "window": st.sampled_from([None, [30, 0], [30, -1], [-1, 3]]),
            "dtype": st.sampled_from(["fp32", "bf16"]),
            "mode": st.sampled_from(["fwd", "fwd-bwd"]),
            "lengths": st.sampled_from(["full", "zipf"]),
        },
    )
)
def test_flags_name_the_case_whatever_the_defaults_are(values):
    made = WORKLOAD.case(values)
    words = WORKLOAD.flags(made)
    read, names = {}, {f"--{axis.name.replace('_', '-')}": axis for axis in WORKLOAD.axes}
    while words:
        word = words.pop(0)
        if word.startswith("--no-"):
            read[word.removeprefix("--no-").replace("-", "_")] = False
        elif names[word].boolean:
            read[names[word].name] = True
        else:
            read[names[word].name] = names[word].parse(words.pop(0))
    assert WORKLOAD.case(read) == made
    assert {"batch", "seqlen", "nheads", "headdim", "causal", "dtype", "mode"} <= set(read)
