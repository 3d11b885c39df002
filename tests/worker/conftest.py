import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Workers that leave each other the cores: threads that spin for the next task would be most of the time."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
