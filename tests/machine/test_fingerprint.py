"""The environment block: complete, of the right GPU, and without a name, a user or a path."""

import getpass
import importlib.metadata
import json
import platform
import socket
import sys
from types import SimpleNamespace

import pytest
import torch

from attnbench.machine import fingerprint
from attnbench.machine.device import CPU, Device
from attnbench.record import Environment, from_dict, to_dict

GPU_FIELDS = ("gpu", "gpu_mem_gb", "gpu_uuid", "sm_count", "l2_mb", "power_limit_w", "driver")


@pytest.fixture
def h200(nvml, monkeypatch):
    """torch's half of the fake card."""
    props = SimpleNamespace(
        name="NVIDIA H200",
        total_memory=150_110_011_392,
        multi_processor_count=132,
        L2_cache_size=62_914_560,
        uuid="11111111-aaaa-bbbb-cccc-000000000000",
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: props)
    return nvml


def test_on_a_cpu_the_gpu_fields_are_none(nvml):
    env = fingerprint.environment(CPU)
    assert {getattr(env, name) for name in GPU_FIELDS} == {None}
    assert env.python == platform.python_version()
    assert env.torch == torch.__version__
    assert env.packages["numpy"] == importlib.metadata.version("numpy")
    assert env.cores >= 1
    assert env.ram_gb > 0.1


def test_on_a_card(h200):
    env = fingerprint.environment(Device("cuda"))
    assert [getattr(env, name) for name in GPU_FIELDS] == [
        "NVIDIA H200",
        139.8,
        "GPU-11111111-aaaa-bbbb-cccc-000000000000",
        132,
        60.0,
        700.0,
        "580.95.05",
    ]


def test_on_a_card_without_nvml(h200, monkeypatch):
    monkeypatch.delenv("FAKE_NVML")
    env = fingerprint.environment(Device("cuda"))
    assert (env.gpu, env.driver, env.power_limit_w) == ("NVIDIA H200", None, None)
    assert env.gpu_uuid == "GPU-11111111-aaaa-bbbb-cccc-000000000000"


def test_it_names_nobody_and_survives_the_run_file(h200):
    env = fingerprint.environment(Device("cuda"))
    text = json.dumps(to_dict(env))
    for secret in (socket.gethostname(), getpass.getuser(), sys.prefix, "/home"):
        assert secret not in text
    assert from_dict(Environment, json.loads(text)) == env


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC  9654 96-Core\nmodel name\t: other\n", "AMD EPYC 9654 96-Core"),
        ("processor\t: 0\nBogoMIPS\t: 50\n\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("cpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
    ],
)
def test_cpu_name(tmp_path, monkeypatch, text, name):
    monkeypatch.setattr(fingerprint, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(text)
    assert fingerprint.cpu_name() == name


@pytest.mark.parametrize("text", ["", "processor\t: 0\nmodel name\t:\n"])
def test_cpu_name_falls_back_on_what_python_knows(tmp_path, monkeypatch, text):
    monkeypatch.setattr(fingerprint, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    if text:
        (tmp_path / "cpuinfo").write_text(text)
    assert fingerprint.cpu_name() == "aarch64"


@pytest.mark.parametrize(("number", "version"), [(91900, "9.19.0"), (90100, "9.1.0"), (8907, "8.9.7"), (None, None)])
def test_cudnn(number, version):
    assert fingerprint._cudnn(number) == version


def test_the_kernel_is_named_by_its_number_only(monkeypatch):
    monkeypatch.setattr(platform, "release", lambda: "6.8.0-45-acme-host17")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert "Linux 6.8.0, " in fingerprint.environment(CPU).os


def test_triton_is_found_under_its_nightly_name(monkeypatch):
    monkeypatch.setattr(fingerprint, "packages", lambda: {"pytorch-triton": "3.6.0+git1"})
    assert fingerprint.environment(CPU).triton == "3.6.0+git1"
