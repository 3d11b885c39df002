"""Commands for the user: fit for this GPU, and none of them run."""

from pathlib import Path

import pytest

from attnbench.machine import advice
from attnbench.machine.device import Device
from attnbench.machine.nvml import Gpu

GIB = 2**30


def commands(nvml, device="cuda"):
    return [item.command for item in advice.tuning(Gpu.open(Device.parse(device)))]


def test_tuning_is_from_the_cards_own_maximum(nvml):
    assert commands(nvml) == ["sudo nvidia-smi -pm 1", "sudo nvidia-smi -lgc 1980,1980", "sudo nvidia-smi -rgc"]
    nvml.card(sm_max_mhz=1410, persistence=1)
    assert commands(nvml) == ["sudo nvidia-smi -lgc 1410,1410", "sudo nvidia-smi -rgc"]


def test_one_card_of_several_is_named(nvml):
    nvml.add("NVIDIA H200", 1)
    assert commands(nvml, "cuda:1")[1] == "sudo nvidia-smi -i 1 -lgc 1980,1980"


def test_an_unknown_maximum_gives_no_command(nvml):
    nvml.set(refuse=["nvmlDeviceGetMaxClockInfo"])
    assert commands(nvml) == ["sudo nvidia-smi -pm 1"]


NEW = {"torch": "2.11.0+cu130", "triton": "3.6.0"}


@pytest.mark.parametrize(
    ("versions", "cuda", "driver", "said"),
    [
        (NEW, "13.0", (13, 0), []),
        (NEW, "13.0", (13, 1), []),  # a minor version runs either way
        (NEW, None, None, []),
        ({"torch": None, "triton": None}, "13.0", None, []),
        (
            NEW | {"torch": "2.9.1"},
            "13.0",
            (13, 0),
            ["pip install -U torch: 2.9.1 is older than 2.11, the oldest tested"],
        ),
        (
            NEW | {"triton": "3.5.0"},
            "13.0",
            (13, 0),
            ["pip install -U triton: 3.5.0 is older than 3.6, the oldest tested"],
        ),
        (NEW, "13.0", (12, 8), ["a driver for CUDA 13.0: torch is built for it, and this driver knows CUDA 12.8"]),
        (
            NEW,
            "12.8",
            (13, 0),
            [
                "pip install -U torch --index-url https://download.pytorch.org/whl/cu130: torch is built for CUDA 12.8, the "
                "driver knows 13.0, and newer builds have newer kernels"
            ],
        ),
    ],
)
def test_what_is_old_is_said_with_what_to_do(versions, cuda, driver, said):
    assert [f"{one.command}: {one.why}" for one in advice.updates(versions, cuda, driver)] == said


def test_the_oldest_torch_is_that_of_the_package():
    root = Path(__file__).parents[2]
    asked = ".".join(map(str, advice.OLDEST["torch"]))
    assert f'"torch>={asked}"' in (root / "pyproject.toml").read_text("utf-8")
    assert f"triton >= {'.'.join(map(str, advice.OLDEST['triton']))}".replace(">=", "≥") in (
        root / "DESIGN.md"
    ).read_text("utf-8")


@pytest.mark.parametrize(("gib", "jobs"), [(0, 1), (1, 1), (9.9, 1), (10, 2), (63, 12), (4000, 16)])
def test_max_jobs_by_memory_and_cores(monkeypatch, gib, jobs):
    monkeypatch.setattr(advice, "usable_cores", lambda: 16)
    assert advice.max_jobs(int(gib * GIB)) == jobs


def test_unknown_memory_is_one_job(monkeypatch):
    monkeypatch.setattr(advice, "available_memory", lambda: None)
    assert advice.max_jobs() == 1


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "MAX_JOBS={max_jobs} pip install --no-build-isolation flash-attn",
            "MAX_JOBS=3 pip install --no-build-isolation flash-attn",
        ),
        ('pip install "flash-attn-4[cu13]==4.0.0b36" {}', 'pip install "flash-attn-4[cu13]==4.0.0b36" {}'),
        ("part of torch", "part of torch"),
    ],
)
def test_max_jobs_is_filled_in_where_a_line_asks_for_it(monkeypatch, line, wanted):
    monkeypatch.setattr(advice, "max_jobs", lambda: 3)
    assert advice.install_line(line) == wanted
