"""CI fails on a skip that is not listed with its reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAIN = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
"The environment without what this pytest was told to show."
HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("reason", "ci", "code"),
    [("needs a CUDA GPU", "true", 0), ("did not feel like it", "true", 1), ("did not feel like it", "", 0)],
)
def test_a_skip_needs_a_listed_reason(tmp_path: Path, reason: str, ci: str, code: int) -> None:
    for name in ("conftest.py", "skips.toml"):
        (tmp_path / name).write_bytes((HERE / name).read_bytes())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: x\n")
    (tmp_path / "test_it.py").write_text(
        f"import pytest\ndef test_one(): pass\ndef test_two(): pytest.skip({reason!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        text=True,
        capture_output=True,
        cwd=tmp_path,
        env={**PLAIN, "CI": ci},
    )
    assert done.returncode == code, done.stdout
    assert ("skips.toml does not list" in done.stdout) == bool(code)
    assert done.stdout.strip().splitlines()[-1].startswith("=")


def test_tests_of_one_kind_of_card_say_first_that_there_is_none(tmp_path: Path) -> None:
    """A reason of its own for each card would have to be listed with each."""
    for name in ("conftest.py", "skips.toml"):
        (tmp_path / name).write_bytes((HERE / name).read_bytes())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\n    hopper: x\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.gpu\n@pytest.mark.hopper\ndef test_one(): assert False\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", str(tmp_path)],
        text=True,
        capture_output=True,
        cwd=tmp_path,
        env={**PLAIN, "CI": "true", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout
    assert "needs a CUDA GPU" in done.stdout


def test_who_leaves_a_folder_on_the_search_path_fails(tmp_path: Path) -> None:
    """Each Python that a later test starts would look there first, as once for a simulated card."""
    for name in ("conftest.py", "skips.toml"):
        (tmp_path / name).write_bytes((HERE / name).read_bytes())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: x\n")
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_one(monkeypatch): monkeypatch.syspath_prepend('/some/folder')\n"
        "def test_two(): sys.path.insert(0, '/some/folder')\n"
        "def test_three(): assert '/some/folder' not in sys.path\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        text=True,
        capture_output=True,
        cwd=tmp_path,
        env=PLAIN,
    )
    assert "ERROR test_it.py::test_two - AssertionError: assert not ['/some/folder']" in done.stdout
    assert "3 passed, 1 error" in done.stdout


def test_ci_runs_the_users_command() -> None:
    lines = (HERE.parent / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-1] == "make test"
    assert os.access(HERE.parent / ".ci" / "run", os.X_OK)
