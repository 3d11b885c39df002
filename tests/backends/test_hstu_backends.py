"""Every HSTU backend of ours on the devices it runs on: right on a grid of cases, and what must hold of any of them.

A backend is found by the registry, so a new one is held to all of this without a line here.  Adapters
of others' libraries (they name a module) are tested by measuring them: a wheel that does not fit ends
the process.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.errors import Unsupported
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD
from attnbench.workloads.hstu.choice import BlockChoice
from attnbench.workloads.hstu.inputs import make_inputs

OURS = {name: one for name, one in all_backends().items() if one.workload == "hstu" and one.module is None}
# torch.compile takes seconds a case, and what it compiles is hstu-eager: it has a test of its own.
PLACES = [(name, device) for name, one in OURS.items() for device in one.devices if name != "hstu-compile"]
EACH = [
    pytest.param(name, device, marks=[pytest.mark.gpu] * (device == "cuda"), id=f"{name}-{device}")
    for name, device in PLACES
]
SPARSE = [place for place in EACH if OURS[place.values[0]].variant == "hstu-bsa"]

GRID = {
    "full": {},
    "jagged": {"batch": 4, "lengths": "129:0:1:70"},
    "targets": {"batch": 3, "lengths": "100:7:5", "num_targets": "4:0:5"},
    "cached": {"batch": 3, "lengths": "129:3:64", "delta_q": 33, "num_targets": "2:0:5"},
    "factors": {"alpha": 1.7, "scaling_seqlen": 30},
    "wide-values": {"attn_dim": 16, "linear_dim": 32},
    "prefix": {"batch": 2, "lengths": "129:20", "contextual_len": 6, "num_targets": "3:0"},
    "window": {"max_attn_len": 40, "num_targets": 3},
    "window-and-prefix": {"batch": 2, "lengths": "129:9", "max_attn_len": 20, "contextual_len": 9},
    "not-causal": {"causal": False},
    "sliding": {"local_window": 20, "num_targets": 2},
    "shared": {"selection": "shared", "num_targets": 3},
    "pairs": {"batch": 2, "lengths": "129:64", "pairs": True, "num_targets": "3:0", "delta_q": 90},
    "no-gates": {"gates": False, "local_window": 9},
    "empty": {"batch": 2, "lengths": "0:0"},
}
MASKS = ("prefix", "window", "window-and-prefix", "not-causal")
BLOCKS = ("sliding", "shared", "pairs", "no-gates")


def of(**values):
    return WORKLOAD.case(
        {
            "batch": 2,
            "seqlen": 129,
            "nheads": 2,
            "attn_dim": 32,
            "linear_dim": 32,
            "dtype": "fp32",
            "mode": "fwd-bwd",
            "block_size": 16,
            "block_counts": 3,
        }
        | values
    )


def make(case, device, seed=1):
    return make_inputs(case, seed=seed, kind="normal", device=device)


def taken(name, device, case):
    """The case in a mode and precision the backend has; None where it refuses both."""
    capability = torch.cuda.get_device_capability() if device == "cuda" else None
    for dtype in dict.fromkeys((case.dtype, "bf16")):
        for mode in dict.fromkeys((case.mode, "fwd")):
            try:
                one = replace(case, dtype=dtype, mode=mode)
                OURS[name].check(one, Machine(device, capability))
            except Unsupported:
                continue
            return one
    return None


def run(name, case, inputs):
    with OURS[name].session(case, inputs) as launch:
        launch.call("fwd" if case.mode == "fwd" else "fwd-bwd")()
        return {key: tensor.clone() for key, tensor in launch.outputs().items()}


def examined(name, case, device):
    backend = OURS[name]
    inputs = [make(case, device, seed) for seed in (1, 2)]
    with backend.session(case, inputs[0]) as launch:
        return examine(
            launch, References(WORKLOAD, case, *inputs), variant=backend.variant, budget=backend.budget(case)
        )


def test_every_backend_of_ours_is_held_to_this():
    assert {*OURS} == {"hstu-eager", "hstu-compile", "hstu-triton", "hstu-bsa-eager", "hstu-bsa-triton"}
    assert {param.values for param in SPARSE} == {
        ("hstu-bsa-eager", "cpu"),
        ("hstu-bsa-eager", "cuda"),
        ("hstu-bsa-triton", "cuda"),
    }


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr("attnbench.check.examine.SETTLE_S", 0.0)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("name", "device"), EACH)
def test_right_on_every_case_it_takes(name, device, dtype):
    sparse, took, wrong = OURS[name].variant == "hstu-bsa", [], []
    for label, values in GRID.items():
        for mode in ("fwd", "fwd-bwd"):
            case = of(dtype=dtype, mode=mode, **values)
            if label in (MASKS if sparse else BLOCKS) or taken(name, device, case) != case:
                continue
            outcome = examined(name, case, device)
            took.append(label)
            if not outcome.ok or set(outcome.notes) - {BlockChoice.followed}:
                wrong.append(f"{case.id}: {outcome.reason} {outcome.notes}")
    assert not wrong, "\n".join(wrong)
    if device == "cpu":
        assert set(took) == set(GRID) - set(MASKS if sparse else BLOCKS)
    assert took or dtype == "fp32"


@pytest.mark.parametrize(("name", "device"), EACH)
def test_sequences_of_a_batch_do_not_affect_one_another(name, device):
    case = taken(name, device, of(batch=3, lengths="129:40:70"))
    inputs = make(case, device)
    others = {key: tensor.clone() for key, tensor in inputs.tensors().items()}
    for key in ("q", "k", "v", "dout", "gates"):
        if key in others:
            others[key][129:169] *= -3
    before, after = (run(name, case, one) for one in (inputs, replace(inputs, **others)))
    for key, tensor in before.items():
        rest = [slice(0, 129), slice(169, None)]
        exact = key in ("out", "blocks")  # gradients may be added up in any order
        for rows in rest:
            torch.testing.assert_close(after[key][rows], tensor[rows], **({"rtol": 0, "atol": 0} if exact else {}))
        assert key == "blocks" or not torch.equal(after[key][129:169], tensor[129:169])


@pytest.mark.parametrize("future", [1, 31, 32, 100, 128])
@pytest.mark.parametrize(("name", "device"), EACH)
def test_a_future_key_changes_nothing(name, device, future):
    case = taken(name, device, of(batch=1, mode="fwd"))
    inputs = make(case, device)
    k, v = inputs.k.clone(), inputs.v.clone()
    k[future:] += 5
    v[future:] -= 5
    before, after = (run(name, case, one) for one in (inputs, replace(inputs, k=k, v=v)))
    for key, tensor in before.items():
        assert torch.equal(tensor[:future], after[key][:future]), key
    assert not torch.equal(before["out"][future:], after["out"][future:])


@pytest.mark.parametrize(("name", "device"), EACH)
def test_permuted_heads_permute_the_outputs(name, device):
    case = taken(name, device, of(nheads=4, num_targets=2))
    inputs, order = make(case, device), torch.tensor([2, 0, 3, 1], device=device)
    heads = {key: tensor[:, order].contiguous() for key, tensor in inputs.tensors().items() if tensor.dim() == 3}
    before, after = (run(name, case, one) for one in (inputs, replace(inputs, **heads)))
    for key, tensor in before.items():
        exact = {"rtol": 0, "atol": 0} if key in ("out", "blocks") else {}
        torch.testing.assert_close(after[key], tensor[:, order], **exact)


@pytest.mark.parametrize("values", [{}, {"num_targets": "3:0", "lengths": "128:70"}])
@pytest.mark.parametrize(("name", "device"), SPARSE)
def test_with_all_blocks_selected_it_is_the_dense_function(name, device, values):
    case = taken(name, device, of(seqlen=128, block_size=32, block_counts=4, local_window=None, **values))
    inputs = make(case, device)
    gates = inputs.gates.zero_()
    gates[..., case.branches.index("selected")] = 1
    got = run(name, case, inputs)
    want = WORKLOAD.oracle("hstu", case, inputs, dtype=torch.float64, draw=Draw())
    step = torch.finfo(got["out"].dtype).eps
    for key, tensor in want.items():
        error = (got[key].double() - tensor).norm() / tensor.norm()
        assert error < 4 * step, f"{key}: {error}"
    shapes = zip(case.sequences, got["blocks"].split([shape.queries for shape in case.sequences]), strict=True)
    for shape, blocks in shapes:
        assert (blocks[-1] >= 0).sum(-1).eq(-(-shape.seen // 32)).all()


@pytest.mark.parametrize(("name", "device"), EACH)
def test_reload_keeps_the_inputs_and_the_new_values(name, device):
    case = taken(name, device, of())
    first, second = make(case, device), make(case, device, seed=2)
    kept = {key: tensor.clone() for key, tensor in first.tensors().items()}
    with OURS[name].session(case, first) as launch:
        launch.forward()
        launch.reload(second)
        launch.call("fwd" if case.mode == "fwd" else "fwd-bwd")()
        again = run(name, case, second)
        for key, tensor in launch.outputs().items():
            torch.testing.assert_close(tensor, again[key])
    for key, tensor in first.tensors().items():
        assert torch.equal(tensor, kept[key])
        assert tensor.grad is None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_compiled_computes_the_same_gradients(device):
    outcome = examined("hstu-compile", of(seqlen=60, lengths="60:7", num_targets="4:1", delta_q=20), device)
    assert (outcome.ok, outcome.reason) == (True, None)
    # torch's compiler names its own assembler for all of the process, where a build of torch has one.
    assert set(outcome.notes) <= {"global left changed: environment variables TRITON_PTXAS_PATH"}


@pytest.mark.parametrize("name", sorted(name for name, one in OURS.items() if one.variant == "hstu-bsa"))
def test_the_sparse_variant_refuses_what_it_is_not_defined_for(name):
    for values, words in (
        ({"causal": False}, "hstu-bsa: causal=False is not defined; causal=true only"),
        ({"contextual_len": 2}, "hstu-bsa: contextual_len=2 is not defined; contextual_len=0 only"),
        ({"max_attn_len": 9}, "hstu-bsa: max_attn_len=9 is not defined; max_attn_len=none only"),
    ):
        with pytest.raises(Unsupported, match=words):
            OURS[name].check(of(**values), Machine(OURS[name].devices[-1], (9, 0)))
