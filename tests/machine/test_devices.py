"""The device of a request."""

import warnings

import pytest
import torch

from attnbench.errors import Unavailable, UsageError
from attnbench.machine.device import CPU, Device
from attnbench.machine.devices import resolve, why_no_gpu


@pytest.fixture
def cards(monkeypatch):
    def set_count(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return set_count


@pytest.mark.parametrize(
    ("device", "count", "meant"),
    [("auto", 0, "cpu"), ("auto", 2, "cuda:0"), ("cpu", 2, "cpu"), ("cuda", 1, "cuda:0"), ("cuda:1", 2, "cuda:1")],
)
def test_what_is_meant(cards, device, count, meant):
    cards(count)
    assert resolve(device) == Device.parse(meant)
    assert str(resolve(device)) == meant


@pytest.mark.parametrize(
    "device", ["gpu", "cuda:", "cuda:-1", "cuda:x", "", "CPU", "cuda:0,1", "mps", "cuda 0", "cuda:１"]
)
def test_what_is_not_known(device):
    with pytest.raises(UsageError) as caught:
        resolve(device)
    assert str(caught.value) == f"device: device={device} is not known; auto, cpu, cuda or cuda:N"


def test_a_card_too_many(cards):
    cards(2)
    with pytest.raises(Unavailable, match=r"^device: device=cuda:2 is not there; cuda:0 to cuda:1$") as caught:
        resolve("cuda:2")
    assert caught.value.exit_code == 3


def test_why_there_is_none(cards, monkeypatch, no_driver):
    cards(0)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(Unavailable, match=r"device=cuda is not there; torch .* is built without CUDA; --device cpu$"):
        resolve("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert why_no_gpu() == "nvml: driver=none answers (Driver Not Loaded); an NVIDIA driver"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert why_no_gpu() == "CUDA_VISIBLE_DEVICES hides every GPU"


def test_why_there_is_none_though_the_driver_knows_it(cards, monkeypatch, nvml):
    cards(0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert why_no_gpu().startswith("the driver knows NVIDIA H200, but torch")


def test_torchs_own_warning_is_the_reason(monkeypatch):
    def warns():
        warnings.warn("The NVIDIA driver on your system is\n too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", warns)
    assert why_no_gpu() == "The NVIDIA driver on your system is too old"
    assert resolve("auto") == CPU


@pytest.mark.parametrize(
    ("text", "device", "spelled"),
    [
        ("cpu", Device("cpu"), "cpu"),
        ("cuda", Device("cuda", 0), "cuda:0"),
        ("cuda:0", Device("cuda"), "cuda:0"),
        ("cuda:12", Device("cuda", 12), "cuda:12"),
    ],
)
def test_a_device_is_a_value_with_a_text_form(text, device, spelled):
    assert Device.parse(text) == device
    assert str(device) == spelled
    assert Device.parse(spelled) == device
    assert device.on_gpu is (device.kind == "cuda")
    assert len({device, Device.parse(text)}) == 1


def test_the_name_of_a_card_is_asked_for_once_and_is_no_part_of_what_it_is(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: asked.append(place) or "NVIDIA H200")
    named = Device("cuda", 1).named()
    assert (named.name, named.named().name, asked) == ("NVIDIA H200", "NVIDIA H200", ["cuda:1"])
    assert named == Device("cuda", 1)
    assert CPU.named().name is None
