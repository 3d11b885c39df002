"""Predictors: maps with known answers, and backends that follow them."""

import sys
from pathlib import Path

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.predict import Predictor
from attnbench.backends.registry import resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.errors import UsageError
from attnbench.workloads.sparse import WORKLOAD
from attnbench.workloads.sparse.patterns import visible_pairs

sys.path.append(str(Path(__file__).parents[1] / "workloads"))

from naive_sparse import attention

CPU = Machine("cpu")
RULES = ("topk0.5", "cdf0.9", "sub0.9", "anti0.9", "cdf0.9-sim0.3", "topk0.25-sim0.2")


def case_of(**values):
    return WORKLOAD.case(
        {"batch": 1, "seqlen": 300, "nheads": 2, "headdim": 16, "dtype": "fp32", "block": "64x64", "density": 0.5}
        | values
    )


def predicted(text, case, inputs):
    q, k = inputs.q.transpose(1, 2), inputs.k.transpose(1, 2)
    return Predictor.read("who", text).on(case, q.device)(q, k)


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"causal": True},
        {"nheads": 4, "nheads_kv": 2},
        {"block": "128x64"},
        {"seqlen_k": 500, "causal": True},
        {"seqlen": 65},
    ],
)
def test_a_map_keeps_a_visible_block_of_every_row_and_no_other(text, values):
    case = case_of(**values, pattern="full", density=1.0)
    found = predicted(text, case, WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu"))
    possible = torch.from_numpy(visible_pairs(case) > 0)
    assert found.shape == (case.batch, case.nheads, *case.blocks)
    assert found.dtype == torch.bool
    assert not (found & ~possible).any()
    assert found.any(-1).all()
    if case.causal and case.seqlen == case.seqlen_k:
        assert found.diagonal(dim1=2, dim2=3).all()


@pytest.mark.parametrize("rule", ["topk0.2", "cdf0.6", "sub0.6", "anti0.6"])
def test_the_block_that_matters_is_found(rule):
    """Queries of block i look at keys of block 4 - i alone."""
    case = case_of(seqlen=320, pattern="full", density=1.0)
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    inputs.q.mul_(0.1)
    inputs.k.mul_(0.1)
    for i in range(5):
        inputs.q[:, 64 * i : 64 * (i + 1), :, i] += 8.0
        inputs.k[:, 64 * (4 - i) : 64 * (5 - i), :, i] += 8.0
    found = predicted(rule, case, inputs)
    assert torch.equal(found[0, 0], torch.eye(5, dtype=torch.bool).flip(1))


def test_the_share_says_how_much_is_kept():
    case = case_of(seqlen=1024, pattern="full", density=1.0)
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    assert (predicted("topk0.25", case, inputs).sum(-1) == 4).all()
    assert predicted("topk1", case, inputs).all()
    assert predicted("cdf1", case, inputs).all()
    counts = [int(predicted(f"cdf{share}", case, inputs).sum()) for share in (0.2, 0.5, 0.9)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize(("text", "kept"), [("topk0.25", 8), ("cdf0.5", 16), ("sub0.5", 16), ("anti0.5", 16)])
def test_of_equal_scores_the_first_are_kept(text, kept):
    """So many that a sort that is not stable changes their order."""
    case = case_of(seqlen=64, seqlen_k=2048, pattern="full", density=1.0)
    inputs = WORKLOAD.inputs(case, seed=0, kind="zeros", device="cpu")
    assert torch.equal(predicted(text, case, inputs), (torch.arange(32) < kept).expand(1, 2, 1, 32))


def test_the_gate_keeps_blocks_whose_tokens_are_not_alike():
    case = case_of(seqlen=256, pattern="full", density=1.0)
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    inputs.q[:] = inputs.q[:, :1]
    inputs.k[:] = inputs.k[:, :1] + 0.01 * inputs.k
    assert (predicted("topk0.25-sim0.9", case, inputs).sum(-1) == 1).all()
    inputs.k[:, 128:192] = torch.randn(64, 2, 16)
    inputs.q[:, :64] = torch.randn(64, 2, 16)
    found = predicted("topk0.25-sim0.9", case, inputs)
    assert found[:, :, 0].all()
    assert found[..., 2].all()
    assert not found[:, :, 1:, [0, 1, 3]].all()


@pytest.mark.parametrize(
    "text", ["", "cdf", "cdf0", "cdf1.5", "top0.5", "topk-0.5", "cdf0.9-sim2", "sub0.9-sim0.5", "cdf0.\u0663"]
)
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(UsageError, match=r"who: predictor=.* cannot be read; topkX, cdfX, subX or antiX"):
        Predictor.read("who", text)


@pytest.mark.parametrize("name", ["sparse-eager[cdf0.5]", "sdpa-masked[topk0.5-sim0.01]", "sparse-eager[anti0.7]"])
def test_a_backend_that_follows_passes_the_whole_examination(name):
    case = case_of(nheads=4, nheads_kv=2)
    inputs, fresh = (WORKLOAD.inputs(case, seed=seed, kind="normal", device="cpu") for seed in (0, 1))
    backend = resolve(name, case)
    backend.check(case, CPU)
    assert backend.variant_of(case) == "chosen"
    references = References(WORKLOAD, case, inputs, fresh)
    with backend.session(case, inputs) as launch:
        launch.forward()
        outcome = examine(launch, references, variant="chosen", budget=backend.budget(case))
        assert outcome.ok, outcome.reason
        assert outcome.notes == ("compared with attention over the map that it used",)
        assert set(launch.phases) == {"predict", "convert", "kernel"}
        for phase in launch.phases.values():
            phase()
        out = launch.outputs()
    assert launch.notes[0] == f"map predicted: {name.partition('[')[2][:-1]}"
    truth = attention(case, inputs, out["block_map"])[0]
    torch.testing.assert_close(out["out"].double(), truth, rtol=2e-5, atol=2e-5)
    assert 0 < outcome.counters["density"] < 1
    assert 0 < outcome.counters["mass_kept"] < 1
    assert outcome.counters["useful_flops"] < WORKLOAD.work(case).dense_flops


def test_a_predicted_map_need_not_keep_the_cases_where_another_may_be_rounded_up():
    case = case_of(widen=True)
    inputs, fresh = (WORKLOAD.inputs(case, seed=seed, kind="normal", device="cpu") for seed in (0, 1))
    backend = resolve("sparse-eager[topk0.2]", case)
    with backend.session(case, inputs) as launch:
        launch.forward()
        assert (inputs.block_map & ~launch.outputs()["block_map"]).any()
        references = References(WORKLOAD, case, inputs, fresh)
        outcome = examine(launch, references, variant="chosen", budget=backend.budget(case))
    assert outcome.ok, outcome.reason


def test_a_wrong_answer_to_its_own_map_is_found():
    case = case_of()
    inputs, fresh = (WORKLOAD.inputs(case, seed=seed, kind="normal", device="cpu") for seed in (0, 1))
    backend = resolve("sparse-eager[topk0.5]", case)
    with backend.session(case, inputs) as launch:
        launch.forward()
        right = launch.outputs
        launch.outputs = lambda: {**right(), "block_map": right()["block_map"].roll(1, -1)}
        outcome = examine(
            launch, References(WORKLOAD, case, inputs, fresh), variant="chosen", budget=backend.budget(case)
        )
    assert not outcome.ok
    assert "out: wrong values" in outcome.reason


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("left", "said"), [(0, 600), (9, 64)])
def test_a_chosen_map_that_leaves_queries_without_a_key_is_refused(causal, left, said):
    """An empty map and zeros agree with each other and are the fastest of all."""
    case = case_of(causal=causal, batch=1, nheads=2, nheads_kv=2, seqlen=300, seqlen_k=300, block="64x64")
    inputs, fresh = (WORKLOAD.inputs(case, seed=seed, kind="normal", device="cpu") for seed in (0, 1))
    blocks = torch.zeros_like(inputs.block_map) if not left else torch.ones_like(inputs.block_map)
    blocks[0, 1, 2] = False
    backend = resolve("sparse-eager[topk0.5]", case)
    with backend.session(case, inputs) as launch:
        launch.forward()
        now = {"inputs": inputs}
        launch.reload = lambda given: now.update(inputs=given)
        launch.outputs = lambda: {"out": attention(case, now["inputs"], blocks)[0].float(), "block_map": blocks.clone()}
        outcome = examine(
            launch, References(WORKLOAD, case, inputs, fresh), variant="chosen", budget=backend.budget(case)
        )
    assert not outcome.ok
    assert f"block_map: leaves {said} of 600 queries without a visible key" in outcome.reason


def test_a_plus_wants_a_configuration_before_it():
    with pytest.raises(UsageError, match=r"name=sparse-flex\[\+cdf0.5\] asks for a configuration; .* has none"):
        resolve("sparse-flex[+cdf0.5]", case_of())


def test_configurations_of_a_library_and_of_a_predictor_go_together():
    case = case_of(headdim=64, dtype="bf16")
    both = resolve("fastvideo-vsa[triton+cdf0.98]", case)
    assert (both.own, both.kernel, both.predictor) == ("triton", "triton", Predictor("cdf", 0.98))
    assert resolve("fastvideo-vsa[cdf0.98-sim0.6]", case).predictor == Predictor("cdf", 0.98, 0.6)
    assert resolve("fastvideo-vsa[tk]", case).predictor is None
    assert resolve("fastvideo-vsa[tk]", case).variant_of(case) == "given"
    for name, words in [
        ("fastvideo-vsa[tc+cdf0.98]", "config=tc is not known"),
        ("fastvideo-vsa[cdf2]", "predictor=cdf2 cannot be read"),
        ("sparse-flex[bogus0.5]", "sparse-flex: predictor=bogus0.5 cannot be read; topkX, cdfX, subX or antiX"),
        ("sparse-flashinfer[cdf0.5]", "config=cdf0.5 is not known"),
    ]:
        with pytest.raises(UsageError, match=words):
            resolve(name, case)
