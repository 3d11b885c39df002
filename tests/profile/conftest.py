import json
import sys
from pathlib import Path

import pytest

from waiting import PATIENCE_S

sys.path.insert(0, str(Path(__file__).parent))

from attnbench.machine import tools
from attnbench.profile import categories


@pytest.fixture(scope="session")
def rules():
    return categories.load()


class FakeTools:
    """The ncu of bin/ and the nsys of tests/fakes/bin on the PATH, and what they were called with."""

    def __init__(self, log):
        self.log = log

    def calls(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def fake_tools(tmp_path, monkeypatch):
    here = Path(__file__).parent
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{here.parent / 'fakes' / 'bin'}:/usr/bin:/bin")
    for key in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(key, raising=False)
    log = tmp_path / "calls.log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setattr(tools, "ANSWER_S", PATIENCE_S)
    return FakeTools(log)
