"""The shipped defaults of the block-sparse HSTU kernels, compiled ahead of time, and the workspace they state."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnbench.kernels.hstu.bsa import api as hstu_bsa
from attnbench.kernels.hstu.bsa import backward as hstu_bsa_backward
from attnbench.kernels.hstu.bsa import forward as hstu_bsa_forward
from attnbench.kernels.hstu.bsa import plan as hstu_bsa_plan

from .aot import NO_OLDEST, compile_with, listed, recorded, tritons

PRODUCTS = {
    "hstu_bsa_select",
    "hstu_bsa_select_shared",
    "hstu_bsa_ticket",
    "hstu_bsa_grad_means",
    "hstu_bsa_grad_keys",
    "hstu_bsa_grad_rows",
}
"Kernels of the default schedule that multiply matrices."

SHAPES = {
    "128": {"heads": 4, "attn_dim": 128, "linear_dim": 128},
    "plain": {"heads": 4, "attn_dim": 128, "linear_dim": 128, "gates": 0},
    "64": {"heads": 8, "attn_dim": 64, "linear_dim": 64},
    "256": {"heads": 4, "attn_dim": 256, "linear_dim": 256},
    "rich": {
        "heads": 4,
        "attn_dim": 128,
        "linear_dim": 128,
        "local_window": 256,
        "gates": 3,
        "has_targets": True,
        "has_cache": True,
        "shared": True,
        "pairs": True,
    },
    "fp32": {"heads": 8, "attn_dim": 32, "linear_dim": 64, "dtype": torch.float32},
}
EVERY = {"pool", "rank", "select", "ticket", "sort", "merge", "grad_means", "grad_keys", "grad_rows"}
CHOSEN = {
    "pinned": {
        (90, "128"): EVERY,
        (90, "rich"): {"select_shared", "ticket", "grad_rows"},
        (90, "256"): {"select", "ticket", "grad_means", "grad_keys"},
        (80, "128"): {"grad_keys"},
        (100, "128"): {"ticket"},
    },
    "3.6": {
        (90, "128"): EVERY,
        (90, "plain"): {"grad_keys"},
        (90, "rich"): {"select_shared"},
        (90, "64"): {"grad_rows"},
        (90, "fp32"): {"select"},
    },
}
MORE = {
    "pinned": {(80, "128"): {"select"}, (100, "128"): {"select", "grad_keys"}},
    "3.6": {
        (90, "plain"): {"grad_means", "grad_rows"},
        (90, "64"): {"select"},
        (90, "fp32"): {"ticket", "grad_keys"},
        (80, "128"): {"ticket"},
    },
}
"""What is compiled by which Triton; a kernel takes one to three seconds.  Each kernel by both at its main shape; the
other shapes that press on registers, and the other cards, by one: what a shape or a card breaks is seen there, and what
a Triton breaks is seen at the main shape."""


def problem(**values):
    return hstu_bsa_plan.BsaProblem(
        **{
            "batch": 64,
            "queries": 524288,
            "keys": 524288,
            "max_seqlen": 8192,
            "max_seqlen_q": 8192,
            "dtype": torch.bfloat16,
            "block_size": 32,
            "block_counts": 4,
            "local_window": 0,
            "gates": 2,
            "alpha": 0.1,
            "scaling_seqlen": 8192,
            "shared": False,
            "pairs": False,
            "has_targets": False,
            "has_cache": False,
        }
        | values
    )


def jobs_of(name, card, chosen):
    """The chosen launches of forward and backward of a shape, on tensors without memory."""
    p = problem(**SHAPES[name])

    def empty(*shape, dtype=p.dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    q, k, v = (
        empty(p.queries, p.heads, p.attn_dim),
        empty(p.keys, p.heads, p.attn_dim),
        empty(p.keys, p.heads, p.linear_dim),
    )
    offsets = empty(p.batch + 1, dtype=torch.int64)
    gates = empty(p.queries, p.heads, p.gates) if p.gates else None
    tensors = hstu_bsa.BsaTensors(
        q=q,
        k=k,
        v=v,
        gates=gates,
        offsets=offsets,
        offsets_q=offsets if p.has_cache else None,
        num_targets=offsets[:-1] if p.has_targets else None,
    )
    out, blocks = empty(p.queries, p.heads, p.linear_dim), empty(p.queries, p.list_heads, 4, dtype=torch.int32)
    config = hstu_bsa.default_config(p, (card // 10, card % 10))
    call = tensors.call(p, config, out, blocks, hstu_bsa.forward_workspace(p, config, q.device))
    gradients = hstu_bsa.BsaGradients(
        call=call,
        dout=out,
        dq=q,
        dk=k,
        dv=v,
        dgates=tensors.gates,
        workspace=hstu_bsa.allocate(hstu_bsa.backward_shapes(p, config), q.device),
    )
    found = []
    for module, launch, argument in (
        (hstu_bsa_forward, hstu_bsa.forward, call),
        (hstu_bsa_backward, hstu_bsa.backward, gradients),
    ):
        kernels = [kernel for kernel in vars(module) if re.match("hstu_bsa_", kernel)]
        with recorded(module, *kernels, capability=card) as jobs:
            launch(argument)
        # The backward's passes launch the same kernels again and again.
        found += {
            job.kernel: replace(job, label=f"{name} {job.kernel.split(':')[1]} {card}")
            for job in jobs
            if job.kernel.split(":hstu_bsa_")[1] in chosen
        }.values()
    return found


def faults(job, one):
    """What of a compiled default is not as it should be."""
    name, kernel, _ = job.label.split()
    multiplies = kernel in PRODUCTS and SHAPES[name].get("dtype") != torch.float32
    handed = one.handovers
    # Attend waits and combine waits; the compiler may join their arrivals.
    waits = handed["acquire"] >= 2 and handed["release"] >= 1
    ordered = waits == (kernel == "hstu_bsa_ticket") and not handed["open"]
    return (
        [f"{one.spills} spills"] * (one.spills > 0)
        + ["serialized"] * one.serialized
        + [f"{one.tensor_core} products of tensor cores"] * ((one.tensor_core > 0) != multiplies)
        + [f"hands over by {handed}"] * (not ordered)
    )


# One test compiles all: a fixture would be made anew by each worker that runs tests of this file.
@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_defaults_compile_without_spills_and_on_tensor_cores(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    places = listed(*({of: chosen.items() for of, chosen in all_of.items()} for all_of in (CHOSEN, MORE)))[version]
    jobs = [job for (card, name), chosen in places for job in jobs_of(name, card, chosen)]
    assert len(jobs) == sum(len(chosen) for _, chosen in places)
    found = compile_with({version: tritons()[version]}, jobs)[version]
    assert not {job.label: wrong for job in jobs if (wrong := faults(job, found[job.label]))}


def test_every_shape_and_card_is_compiled_and_every_kernel_by_both_tritons():
    held = {place for places in CHOSEN.values() for place in places}
    assert {name for _, name in held} == {*SHAPES}
    assert {card for card, _ in held} == {80, 90, 100}
    for places in CHOSEN.values():
        assert set().union(*places.values()) == EVERY | {"select_shared"}


def test_another_batch_or_length_compiles_nothing_anew():
    """What a kernel is compiled for is its constants, and how pointers and strides are aligned."""
    kernels = [
        value
        for module in (hstu_bsa_forward, hstu_bsa_backward)
        for name, value in vars(module).items()
        if name.startswith("hstu_bsa_")
    ]
    assert len(kernels) == 14
    for kernel in kernels:
        for parameter in kernel.params:
            if not parameter.is_constexpr and not re.search(
                "_ptr$|^sequences$|strides$|^half_alpha$|^scale$", parameter.name
            ):
                assert parameter.do_not_specialize, (kernel.__name__, parameter.name)


def test_no_buffer_grows_with_pairs_of_queries_and_blocks():
    """Twice the length at the same tokens: every buffer stays as large, but for what is left over of a pair."""

    def sizes(length):
        p = problem(**SHAPES["128"], batch=524288 // length, max_seqlen=length, max_seqlen_q=length)
        config = hstu_bsa.default_config(p, (9, 0))
        return hstu_bsa_plan.bytes_of(hstu_bsa_plan.saved_shapes(p, config)) + sum(
            hstu_bsa_plan.bytes_of({name: shape})
            for name, shape in hstu_bsa_plan.forward_shapes(p, config).items()
            if name != "partial"
        )

    assert sizes(32768) <= sizes(2048) * 1.001


@pytest.mark.parametrize("length", [512, 1024, 4096, 16384])
@pytest.mark.parametrize("batch", [1, 32])
def test_workspace_is_less_than_one_copy_of_the_scores(length, batch):
    p = problem(
        **SHAPES["128"],
        batch=batch,
        queries=batch * length,
        keys=batch * length,
        max_seqlen=length,
        max_seqlen_q=length,
    )
    config = hstu_bsa.default_config(p, (9, 0))
    shapes = hstu_bsa_plan.saved_shapes(p, config) | hstu_bsa_plan.forward_shapes(p, config)
    assert hstu_bsa_plan.bytes_of(shapes) < p.units * length * length * p.item


DOCS = Path(__file__).resolve().parents[2] / "docs" / "hstu.md"


@pytest.mark.parametrize("name", ["128", "64", "256"])
def test_workspace_is_what_the_docs_say(name):
    """The formula of docs/hstu.md, read from there and computed, is what is allocated, within a percent."""
    section = DOCS.read_text(encoding="utf-8").split("## Memory of hstu-bsa-triton")[1].split("\n## ")[0]
    formulas = dict(re.findall(r"^\| (\w[\w ]*) \| `([^`]+)` \|", section, re.MULTILINE))
    p = problem(**SHAPES[name])
    config = hstu_bsa.default_config(p, (9, 0))
    ring = hstu_bsa_plan.in_flight(p, config).ring
    numbers = {
        "I": p.item,
        "B": p.block_size,
        "S": p.block_counts,
        "D": p.attn_dim,
        "Dv": p.linear_dim,
        "N": p.max_seqlen,
        "rows": config.list_rows,
        "ring": ring,
        "pairs": hstu_bsa_plan.pairs_of_pass(p, p.attn_dim, config),
    }
    tokens = p.queries * p.heads
    saved, forward = hstu_bsa_plan.saved_shapes(p, config), hstu_bsa_plan.forward_shapes(p, config)
    backward = hstu_bsa_plan.backward_shapes(p, config)

    def size(shapes, *names):
        return hstu_bsa_plan.bytes_of({key: shapes[key] for key in names})

    expected = {
        "means": size(saved, "means_k", "means_v") / tokens,
        "lists": (size(saved, "entries", "starts") + size(forward, "ranks", "counts", "tiles")) / tokens,
        "partial rows": size(forward, "partial"),
        "gradients of means": size(backward, "dmeans_k", "dmeans_v") / tokens,
        "sorted lists": size(backward, "pieces", "ordered") / tokens,
        "partial gradients": size(backward, "partial_dq", "partial_dgate"),
    }
    assert formulas.keys() == expected.keys()
    for kind, formula in formulas.items():
        assert eval(formula, {"__builtins__": {}}, numbers) == pytest.approx(expected[kind], rel=0.01), kind
    if name == "128":
        said = re.search(r"head takes (\d+) bytes besides the (\d+) of .* holds (\d+) pairs", section)
        assert said
        assert [*map(int, said.groups())] == [round(expected["means"] + expected["lists"]), 4 * 128 * 2, ring]
