import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

from fake_card import nvml  # noqa: F401  (a fixture of this folder)


@pytest.fixture
def log(tmp_path, monkeypatch):
    """What backends of misbehaving.py write down."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("ATTNBENCH_TEST_LOG", str(path))
    return path
