"""HstuCase: errors of invalid fields, unique names, and the round trip through JSON and flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnbench
from attnbench.errors import UsageError
from attnbench.workloads.attention import WORKLOAD as ATTENTION
from attnbench.workloads.base import load_workload, workload_names
from attnbench.workloads.hstu import WORKLOAD
from attnbench.workloads.hstu.inputs import make_inputs

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(attnbench.__file__).parents[1])}
BASE = {"batch": 2, "seqlen": 1024, "nheads": 4, "attn_dim": 32, "linear_dim": 64}

DRAWN = {"uniform": (13348, 1477, 7948, 655), "zipf": (195, 4, 1600, 2), "kuairand": (20000, 20000, 8996, 8400)}


def case(**values):
    return WORKLOAD.case(BASE | values)


def test_found_by_folder():
    assert "hstu" in workload_names()
    assert load_workload("hstu") is WORKLOAD


@pytest.mark.parametrize("module", ["", ".case", ".work", ".axes", ".lengths"])
def test_imports_without_torch(module):
    code = (
        "import sys\n"
        "for name in ('torch', 'triton', 'numpy', 'pandas'): sys.modules[name] = None\n"
        f"import attnbench.workloads.hstu{module}\n"
        "from attnbench.workloads.hstu import WORKLOAD, sparse_work\n"
        "case = WORKLOAD.case({'batch': 3, 'lengths': 'kuairand'})\n"
        "assert WORKLOAD.work(case).flops > sparse_work(case).flops > 0 and case.id and WORKLOAD.shrink(case, 0.5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr


def test_axes_are_the_fields_and_their_defaults_make_a_case():
    made = WORKLOAD.case({})
    assert [axis.name for axis in WORKLOAD.axes] == list(made.to_dict())
    assert made.id == "b2-s1024-h8-d64-fp16-causal-bs32x4-gates-fwd"


def test_axes_shared_with_softmax_attention_have_its_defaults():
    theirs = {axis.name: axis for axis in ATTENTION.axes}
    shared = [(axis, theirs[axis.name]) for axis in WORKLOAD.axes if axis.name in theirs and not axis.boolean]
    assert len(shared) == 6
    assert all(ours.default == other.default for ours, other in shared)


def test_fields_follow_their_partner():
    made = WORKLOAD.case({"attn_dim": 48, "seqlen": 65})
    assert (made.linear_dim, made.scaling_seqlen, made.block_counts, made.most_blocks) == (48, 65, 3, 3)
    assert made.alpha == pytest.approx(48**-0.5, rel=1e-15)
    assert case().block_counts == 4


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "b2-s1024-h4-d32-dv64-fp16-causal-bs32x4-gates-fwd"),
        (
            {"alpha": 0.5, "scaling_seqlen": 7, "causal": False, "max_attn_len": 9, "contextual_len": 6},
            "b2-s1024-h4-d32-dv64-a0_5-n7-fp16-w9-c6-bs32x4-gates-fwd",
        ),
        (
            {"num_targets": "1-20", "delta_q": 5, "lengths": "kuairand", "mode": "bwd"},
            "b2-s1024-h4-d32-dv64-fp16-causal-t1to20-dq5-kuairand-bs32x4-gates-bwd",
        ),
        (
            {"num_targets": "3:0", "lengths": "3:7", "local_window": 8, "selection": "shared", "gates": False},
            "b2-s1024-h4-d32-dv64-fp16-causal-t3_0-len3_7-bs32x4-lw8-shared-fwd",
        ),
        ({"pairs": True}, "b2-s1024-h4-d32-dv64-fp16-causal-bs32x4-pairs-gates-fwd"),
    ],
)
def test_id(values, name):
    assert case(**values).id == name


def test_ids_of_a_grid_are_unique_and_fit_a_file_name():
    grid = {
        "alpha": [None, 0.1, 1e-5],
        "scaling_seqlen": [None, 64],
        "causal": [False, True],
        "max_attn_len": [None, 5],
        "contextual_len": [0, 3],
        "num_targets": ["0", "1-3", "1:3"],
        "delta_q": [None, 7],
        "lengths": ["full", "kuairand", "9:8"],
        "local_window": [None, 4],
        "selection": ["head", "shared"],
        "pairs": [True, False],
        "gates": [True, False],
    }
    cases = {case(**dict(zip(grid, values, strict=True))) for values in product(*grid.values())}
    ids = {made.id for made in cases}
    assert len(ids) == len(cases) == 3 * 3 * 3 * 2**9
    assert all(name.replace("-", "").replace("_", "").isalnum() and name.islower() for name in ids)
    assert len(case(batch=64, lengths=":".join(["1000"] * 64)).id) < 80


@st.composite
def values(draw):
    return draw(
        st.fixed_dictionaries(
            {},
            optional={
                "batch": st.integers(1, 4),
                "seqlen": st.integers(100, 300),
                "nheads": st.integers(1, 3),
                "attn_dim": st.integers(1, 99),
                "linear_dim": st.none() | st.integers(1, 99),
                "alpha": st.none() | st.floats(1e-6, 1e3),
                "scaling_seqlen": st.none() | st.integers(1, 10**6),
                "causal": st.booleans(),
                "max_attn_len": st.none() | st.integers(1, 400),
                "contextual_len": st.integers(0, 30),
                "num_targets": st.sampled_from(["0", "20", "1-20", 7]),
                "delta_q": st.none() | st.integers(1, 100),
                "dtype": st.sampled_from(["fp32", "bf16"]),
                "mode": st.sampled_from(["fwd", "bwd", "fwd-bwd"]),
                "lengths": st.sampled_from(["full", "uniform", "zipf", "kuairand"]),
                "block_size": st.sampled_from([1, 16, 32]),
                "block_counts": st.none() | st.integers(1, 4),
                "local_window": st.none() | st.integers(1, 50),
                "selection": st.sampled_from(["head", "shared"]),
                "pairs": st.booleans(),
                "gates": st.booleans(),
            },
        ).filter(lambda some: not some.get("pairs") or some.get("block_size") != 1)
    )


@given(values())
def test_json_and_flags_come_back_exactly(some):
    made = WORKLOAD.case(some)
    assert WORKLOAD.case(json.loads(json.dumps(made.to_dict()))) == made
    words, read = WORKLOAD.flags(made), {}
    names = {f"--{axis.name.replace('_', '-')}": axis for axis in WORKLOAD.axes}
    while words:
        word = words.pop(0)
        if word.startswith("--no-"):
            read[word.removeprefix("--no-").replace("-", "_")] = False
        else:
            read[names[word].name] = True if names[word].boolean else names[word].parse(words.pop(0))
    assert WORKLOAD.case(read) == made


@given(values())
def test_sequences_are_possible(some):
    made = WORKLOAD.case(some)
    assert len(made.sequences) == made.batch
    for shape in made.sequences:
        assert 0 <= shape.length <= made.seqlen
        assert shape.length == shape.prefix + shape.history + shape.targets
        assert min(shape) >= 0
        assert shape.history >= 0
        assert shape.prefix == made.contextual_len
        assert shape.queries == (shape.length if made.delta_q is None else min(made.delta_q, shape.length))


@pytest.mark.parametrize(
    ("some", "message"),
    [
        ({"batch": 0}, "hstu: batch=0 is out of range; a whole number from 1 to 16777216"),
        ({"attn_dim": 1.0}, "hstu: attn_dim=1.0 is not a whole number; a whole number from 1 to"),
        ({"contextual_len": -1}, "hstu: contextual_len=-1 is out of range; a whole number from 0 to 16777216"),
        ({"contextual_len": 2000}, "hstu: contextual_len=2000 is over seqlen=1024; at most seqlen"),
        ({"alpha": 0}, "hstu: alpha=0 cannot be used; a finite number above 0"),
        ({"alpha": float("nan")}, "hstu: alpha=nan cannot be used; a finite number above 0"),
        ({"alpha": True}, "hstu: alpha=True cannot be used; a finite number above 0"),
        ({"scaling_seqlen": 0}, "hstu: scaling_seqlen=0 is out of range"),
        ({"max_attn_len": 0}, "hstu: max_attn_len=0 is out of range; a whole number from 1"),
        ({"delta_q": 1025}, "hstu: delta_q=1025 is over seqlen=1024; at most seqlen"),
        ({"block_size": 48}, "hstu: block_size=48 is no power of two; a power of two such as 32"),
        ({"block_counts": 33}, "hstu: block_counts=33 is over the 32 blocks of 32 in seqlen=1024; a whole number from"),
        ({"block_counts": 0}, "hstu: block_counts=0 is out of range; a whole number from 1"),
        ({"local_window": "4"}, "hstu: local_window=4 is not a whole number"),
        ({"selection": "heads"}, "hstu: selection=heads is not known; one of head, shared; did you mean head?"),
        ({"pairs": "yes"}, "hstu: pairs=yes is not a boolean; true or false"),
        ({"pairs": True, "block_size": 1}, "hstu: block_size=1 parts an item from its action (pairs=True); a power of"),
        ({"gates": 1}, "hstu: gates=1 is not a boolean; true or false"),
        ({"dtype": "fp8"}, "hstu: dtype=fp8 is not known; one of bf16, fp16, fp32"),
        ({"mode": "forward"}, "hstu: mode=forward is not known; one of bwd, fwd, fwd-bwd"),
        ({"num_targets": "a"}, "hstu: num_targets=a is not known; a number for every sequence (20), a range"),
        ({"num_targets": "5-3"}, "hstu: num_targets=5-3 is not known; a number for every sequence"),
        ({"num_targets": "1:2:3"}, "hstu: num_targets=1:2:3 names 3 sequences, batch=2"),
        ({"num_targets": 1020, "contextual_len": 6}, "hstu: num_targets=1020 is over the 1018 rows that seqlen=1024"),
        (
            {"num_targets": "0:4", "lengths": "9:3"},
            "hstu: num_targets=0:4 gives sequence 1 4 targets and a length of 3; at most as many targets",
        ),
        ({"lengths": "gauss"}, "hstu: lengths=gauss is not known; full, uniform, zipf, kuairand, or a length"),
        ({"lengths": None}, "hstu: lengths=None is not known; full, uniform"),
        ({"lengths": "5"}, "hstu: lengths=5 names 1 sequences, batch=2; a length for each sequence"),
        ({"lengths": "5:1025"}, "hstu: lengths=5:1025 has 1025 out of range; from 0 to seqlen=1024"),
        ({"headdim": 5}, "hstu: axis=headdim is not known; one of alpha, attn_dim,"),
    ],
)
def test_refusals_name_field_value_and_what_is_accepted(some, message):
    with pytest.raises(UsageError) as caught:
        case(**some)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("alpha", "inf", "a finite number above 0"),
        ("alpha", "x", "a finite number above 0"),
        ("contextual_len", "-1", "a whole number from 0 to 16777216"),
        ("delta_q", "0", "none, or a whole number"),
        ("num_targets", "1:", "a number for every sequence"),
        ("lengths", "1/2", "full, uniform, zipf, kuairand"),
        ("selection", "all", "one of head, shared"),
    ],
)
def test_axis_says_what_it_accepts(name, text, accepted):
    with pytest.raises(ValueError) as caught:
        next(axis for axis in WORKLOAD.axes if axis.name == name).parse(text)
    assert str(caught.value).startswith(accepted)


def test_one_spelling():
    assert case(lengths="007:0").lengths == "7:0"
    assert case(num_targets="5:5") == case(num_targets=5) == case(num_targets="5-5")
    assert case(alpha=1) == case(alpha=1.0)


@pytest.mark.parametrize("kind", ["uniform", "zipf", "kuairand"])
def test_drawn_lengths_depend_on_the_shape_alone(kind):
    made = case(batch=50, seqlen=20000, lengths=kind)
    changes = ({"dtype": "bf16"}, {"mode": "bwd"}, {"causal": False}, {"nheads": 1}, {"block_size": 16})
    assert all(replace(made, **change).sequences == made.sequences for change in changes)
    assert len({shape.length for shape in made.sequences}) > 20
    assert replace(made, seqlen=19000).sequences != made.sequences


def test_drawn_lengths_are_the_same_on_every_machine():
    drawn = {
        kind: tuple(shape.length for shape in case(batch=4, seqlen=20000, lengths=kind).sequences)
        for kind in ("uniform", "zipf", "kuairand")
    }
    assert drawn == DRAWN


def test_kuairand_has_the_quantiles_of_the_data():
    lengths = sorted(shape.length for shape in case(batch=4001, seqlen=2**20, lengths="kuairand").sequences)
    assert [lengths[i] / 2 for i in (1000, 2000, 3000)] == [pytest.approx(n, rel=0.2) for n in (4371, 8328, 14991)]
    saturated = case(batch=500, seqlen=6 + 8192 + 100, contextual_len=6, num_targets=100, lengths="kuairand").sequences
    assert 0.6 < sum(shape.history == 8192 for shape in saturated) / 500 < 0.9


@pytest.mark.parametrize(
    ("some", "factor", "expected"),
    [
        ({"batch": 8}, 0.5, {"batch": 4, "seqlen": 1024}),
        ({"batch": 1}, 0.5, {"seqlen": 512, "scaling_seqlen": 512}),
        ({"batch": 1, "scaling_seqlen": 99, "block_counts": 32}, 0.5, {"scaling_seqlen": 99, "block_counts": 16}),
        ({"batch": 2, "lengths": "9:8", "num_targets": "1:2"}, 0.5, {"lengths": "9", "num_targets": "1"}),
        ({"batch": 1, "delta_q": 800}, 0.5, {"delta_q": 512}),
    ],
)
def test_shrink_takes_sequences_first_then_length(some, factor, expected):
    smaller = WORKLOAD.shrink(case(**some), factor)
    assert {name: getattr(smaller, name) for name in expected} == expected


@pytest.mark.parametrize("some", [{"seqlen": 1}, {"num_targets": 900}, {"contextual_len": 600}])
def test_shrink_gives_nothing_where_nothing_smaller_is_left(some):
    assert WORKLOAD.shrink(case(batch=1, **some), 0.5) is None


def test_inputs_are_jagged_and_seeded():
    made = case(seqlen=9, num_targets="2:0", delta_q=3, lengths="9:1", local_window=2, mode="bwd", dtype="bf16")
    one, same, other, forward = (
        make_inputs(made if mode == "bwd" else replace(made, mode=mode), seed=seed, kind="normal", device="cpu")
        for seed, mode in ((1, "bwd"), (1, "bwd"), (2, "bwd"), (1, "fwd"))
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in one.tensors().items()}
    assert shapes == {
        "q": (4, 4, 32),
        "k": (10, 4, 32),
        "v": (10, 4, 64),
        "gates": (4, 4, 3),
        "dout": (4, 4, 64),
        "seq_offsets": (3,),
        "seq_offsets_q": (3,),
        "num_targets": (2,),
    }
    assert one.seq_offsets.tolist() == [0, 9, 10]
    assert one.seq_offsets_q.tolist() == [0, 3, 4]
    assert one.num_targets.tolist() == [2, 0]
    assert (one.max_seqlen, one.max_seqlen_q) == (9, 3)
    assert one.q.dtype == torch.bfloat16
    assert ((one.gates > 0) & (one.gates < 1)).all()
    assert all(torch.equal(tensor, same.tensors()[name]) for name, tensor in one.tensors().items())
    assert not torch.equal(one.q, other.q)
    assert "dout" not in forward.tensors()
    assert all(torch.equal(tensor, one.tensors()[name]) for name, tensor in forward.tensors().items())
    assert "gates" not in make_inputs(replace(made, gates=False), seed=1, kind="zeros", device="cpu").tensors()
    with pytest.raises(UsageError, match="hstu: input=gauss is not known; one of normal, uniform, zeros"):
        make_inputs(made, seed=0, kind="gauss", device="cpu")
