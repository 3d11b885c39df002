"""Changed inputs are named and put back: compared together or apart, of either set or shared.  They hold no answer."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from types import FunctionType, ModuleType

import pytest
import torch
from torch import Tensor

from attnbench.check import reference
from attnbench.check.poison import bits
from attnbench.check.reference import References, place_of_copies
from attnbench.workloads.base import load_workload
from check.launches import SumCase, SumWorkload

NAMES = ("fp32", "wide", "bf16", "more bf16", "bool", "int8", "fp8", "int64", "alone", "gap", "empty")


@dataclass
class Many:
    """Inputs of all widths, some of which are shared with other inputs."""

    shared: dict[str, Tensor]
    own: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        return {**self.shared, **self.own}


def tensors(seed: int) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn)

    return {
        "fp32": some(3, 5),
        "wide": some(40, 50),
        "bf16": some(7).bfloat16(),
        "more bf16": some(2, 9).bfloat16().requires_grad_(),
        "bool": some(11) > 0,
        "int8": some(13).mul(20).to(torch.int8),
        "fp8": some(4, 4).to(torch.float8_e4m3fn),
        "int64": some(6).mul(20).to(torch.int64),
        "alone": some(3).double(),
        "gap": some(8, 8)[:, ::2],
        "empty": some(0, 4),
    }


@pytest.fixture(params=[0, 2_000, 2**16], ids=["apart", "by pieces", "together"])
def references(request, monkeypatch) -> References:
    monkeypatch.setattr(reference, "TOGETHER", {"cpu": request.param})
    both = tensors(1)
    shared = {name: both[name] for name in ("fp32", "more bf16", "gap", "int64")}
    sets = (Many(shared, {name: one for name, one in tensors(seed).items() if name not in shared}) for seed in (2, 3))
    return References(SumWorkload(), SumCase(), *sets)


def values(references: References) -> list[bytes]:
    sets = (references.first.inputs, references.second.inputs)
    return [bits(one).numpy().tobytes() for given in sets for one in given.tensors().values()]


def test_what_is_unchanged_is_not_named(references):
    assert references.first.differing() == references.second.differing() == references.changed() == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "empty"])
@pytest.mark.parametrize("which", ["first", "second"])
def test_one_element_of_any_is_named_and_put_back(references, name, which):
    before = values(references)
    one = getattr(references, which).inputs.tensors()[name].detach()
    at = (-1,) * one.dim()
    one[at] = ~one[at] if one.dtype == torch.bool else (one[at].float() + 64).to(one.dtype)
    assert values(references) != before
    assert getattr(references, which).differing() == [name]
    assert references.changed() == [name]
    assert values(references) == before
    assert references.changed() == []


@pytest.mark.parametrize("name", NAMES)
def test_another_form_is_named_and_put_back(references, name):
    before, tensor = values(references), references.second.inputs.tensors()[name]
    form = tensor.shape, tensor.stride(), tensor.data_ptr(), tensor.requires_grad
    tensor.data = tensor.detach().clone()[None]
    assert references.changed() == [name]
    assert (tensor.shape, tensor.stride(), tensor.data_ptr(), tensor.requires_grad) == form
    assert values(references) == before


class Liar(Tensor):
    """Equals whatever it is compared with."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func is torch.equal or super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("name", ["fp32", "more bf16"])
def test_an_input_of_another_class_is_named_and_put_back(references, name):
    before, tensor = values(references), references.first.inputs.tensors()[name]
    tensor.__class__ = Liar
    tensor.detach().zero_()
    assert references.changed() == [name]
    assert type(tensor) is Tensor
    assert values(references) == before
    assert references.changed() == []


@pytest.mark.parametrize("name", ["int64", "bool", "fp8"])
def test_what_was_made_a_leaf_of_gradients_is_put_back(references, name):
    before, tensor = values(references), references.first.inputs.tensors()[name]
    tensor.data = tensor.double()
    tensor.requires_grad_()
    assert references.changed() == [name]
    assert (tensor.dtype, tensor.requires_grad) == (references.first._kept[name].dtype, False)
    assert values(references) == before


def test_a_shared_input_that_one_set_has_lost_is_named(references):
    lost = references.second.inputs.shared["fp32"]
    references.second.inputs.shared = references.second.inputs.shared | {"fp32": lost.clone()}
    assert references.changed() == ["fp32"]


def test_zeros_of_the_other_sign_and_other_nans_are_changes(references):
    fp32 = references.first.inputs.tensors()["fp32"]
    kept = references.first._kept["fp32"]
    for before, after in ((0.0, -0.0), (torch.nan, -torch.nan)):
        fp32[0, 0] = kept[0, 0] = before
        assert references.changed() == []
        fp32[0, 0] = after
        assert references.changed() == ["fp32"]


def test_inputs_are_compared_at_once_and_shared_ones_once(monkeypatch):
    weights = {f"weight {number}": torch.randn(30) for number in range(20)}
    references = References(SumWorkload(), SumCase(), *(Many(weights, {"x": torch.randn(4)}) for _ in range(2)))
    counted = []
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda a, b: counted.append(a.numel()) or equal(a, b))
    assert references.changed() == []
    assert counted == [604, 4]


def test_copies_of_inputs_stay_on_a_device_that_has_room(monkeypatch):
    monkeypatch.setattr(reference, "free_bytes", lambda device: 800)
    assert [str(place_of_copies(size, torch.device("cuda", 1))) for size in (0, 100, 101)] == [
        "cuda:1",
        "cuda:1",
        "cpu",
    ]


def test_the_place_of_copies_follows_from_all_inputs_of_a_set(monkeypatch):
    asked = []
    monkeypatch.setattr(reference, "place_of_copies", lambda size, device: asked.append((size, device)) or "cpu")
    given = Many(tensors(1))
    references = References(SumWorkload(), SumCase(), given, Many(tensors(2)))
    size = sum(one.numel() * one.element_size() for one in given.tensors().values())
    assert asked == [(size, torch.device("cpu"))] * 2
    given.shared["wide"][0, 0] += 1
    assert references.changed() == ["wide"]


WHOLE_MODELS = {
    "hstu-serving": {"model": "tiny", "batch": 2, "num_candidates": 5, "cached": 62, "new_tokens": 8, "dtype": "fp32"},
    "video": {"model": "tiny", "frames": 9, "height": 32, "width": 32, "steps": 4, "dtype": "fp32"},
}


@pytest.mark.parametrize("name", WHOLE_MODELS)
def test_no_answer_is_reached_from_the_inputs_that_a_backend_is_given(name):
    """It could return the answer, or change the one that it is compared with."""
    if name == "video":
        pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    workload = load_workload(name)
    case = workload.case(WHOLE_MODELS[name])
    first, second = (workload.inputs(case, seed=seed, kind="normal", device="cpu") for seed in (1, 2))
    references = References(workload, case, first, second)
    truths = [one.truth(workload.variants[0]) for one in (references.first, references.second)]
    answers = {answer.data_ptr() for truth in truths for answer in truth.oracle.values()}
    found, last = {}, [first, second]
    while last:
        found |= {id(one): one for one in last}
        last = [
            one
            for one in gc.get_referents(*last)
            if id(one) not in found and not isinstance(one, type | ModuleType | FunctionType)
        ]
    tensors = [one for one in found.values() if isinstance(one, Tensor)]
    assert len(tensors) > 4
    assert not answers.intersection(one.data_ptr() for one in tensors)
