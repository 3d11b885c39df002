import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

from fake_card import nvml  # noqa: F401  (a fixture of this folder)

from forked_workers import forking

FAKES = Path(__file__).parents[1] / "fakes"


@pytest.fixture(scope="session")
def forked_worker():
    """Of a process that believes in the card."""
    with forking(path=[FAKES / "simulated_h200"]) as command:
        yield command


@pytest.fixture
def log(tmp_path, monkeypatch):
    """What the backend of tunable.py was called as, one line a session."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("ATTNBENCH_TEST_LOG", str(path))
    return path


@pytest.fixture
def card(nvml, forked_workers, monkeypatch):  # noqa: F811  (the fixture above)
    """The fake NVML, and workers that believe in an H200 on which tunable.py has its times."""
    monkeypatch.syspath_prepend(str(FAKES / "simulated_h200"))
    monkeypatch.setenv("ATTNBENCH_TIMERS", str(FAKES / "tunable_timer.py"))
    return nvml
