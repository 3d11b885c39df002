"""A fake machine with an H200 (or several cards), for tests of whatever asks NVML.

Use the `nvml` fixture: it puts the fake pynvml before the real one, for this process and for the
processes it starts, and yields a `FakeMachine` to read and change.
"""

from __future__ import annotations

import copy
import fcntl
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from waiting import until

FAKES = Path(__file__).parent
MIB = 2**20
Lock = tuple[int | None, int | None]

H200: dict[str, Any] = {
    "name": "NVIDIA H200",
    "uuid": "GPU-11111111-aaaa-bbbb-cccc-000000000000",
    "bus": "00000000:18:00.0",
    "sm_mhz": 345,
    "sm_max_mhz": 1980,
    "mem_mhz": 3201,
    "mem_max_mhz": 3201,
    "instant_mw": 136500,
    "mean_mw": 120000,
    "limit_mw": 700000,
    "celsius": 41,
    "used": 1024 * MIB,
    "total": 143771 * MIB,
    "load": 37,
    "reasons": 0x1 | 0x4,
    "persistence": 0,
    "processes": [[4242, 512 * MIB]],
    "locked_sm": None,
    "locked_mem": None,
    "clocks": {"3201": list(range(1980, 330, -15)), "2619": list(range(1980, 330, -15)), "1593": [1980, 1200]},
}


class FakeMachine:
    """The state the fake pynvml reads, in every process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text(
            json.dumps(
                {
                    "driver": "580.95.05",
                    "permission": True,
                    "refuse": [],
                    "calls": [],
                    "slow_s": 0,
                    "process_names": {"4242": "/home/someone/venv/bin/python train.py"},
                    "gpus": [copy.deepcopy(H200)],
                }
            )
        )

    def read(self) -> dict[str, Any]:
        with self.path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return json.load(file)

    def set(self, **fields: Any) -> None:
        """Change fields of the machine."""
        with self.path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = {**json.load(file), **fields}
            file.seek(0)
            json.dump(state, file)
            file.truncate()

    def card(self, index: int = 0, **fields: Any) -> dict[str, Any]:
        """Change fields of a card; returns it."""
        gpus = self.read()["gpus"]
        gpus[index].update(fields)
        self.set(gpus=gpus)
        return gpus[index]

    def add(self, name: str, number: int) -> str:
        """Put another card into the machine; returns its UUID."""
        uuid = f"GPU-{number:08d}-aaaa-bbbb-cccc-000000000000"
        card = {**copy.deepcopy(H200), "name": name, "uuid": uuid, "bus": f"00000000:{0x18 + number:02X}:00.0"}
        self.set(gpus=[*self.read()["gpus"], card])
        return uuid

    def locked(self, index: int = 0) -> Lock:
        """SM and memory clock it is locked at."""
        card = self.read()["gpus"][index]
        return card["locked_sm"], card["locked_mem"]

    def wait_locked(self, wanted: Lock) -> Lock:
        """The clocks' lock as soon as it is `wanted`, else as it stays."""
        until(lambda: self.locked() == wanted)
        return self.locked()

    def wait_call(self, function: str) -> bool:
        """Whether the driver is given this command."""
        return until(lambda: any(call[0] == function for call in self.read()["calls"]))


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A machine with one H200, whose lock nobody else has: tests beside this one have cards of the same UUID."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    machine = FakeMachine(tmp_path / "nvml.json")
    use_fake_pynvml(monkeypatch)
    monkeypatch.setenv("FAKE_NVML", str(machine.path))
    return machine


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where NVML finds no driver."""
    use_fake_pynvml(monkeypatch)
    monkeypatch.delenv("FAKE_NVML", raising=False)


def use_fake_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    site = FAKES / "site"
    spec = importlib.util.spec_from_file_location("pynvml", site / "pynvml" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.syspath_prepend(str(site))  # children get this process's search path
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
