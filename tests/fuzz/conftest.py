"""An attack for each fuzzer: its folder, its seeds, and how to repeat a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / room) for room in ("profile", "store", "fakes")]
PATIENCE_S = 1800
"""Of one input on the slowest machine."""


def pytest_collection_modifyitems(items):
    from attack import FUZZERS, SECONDS

    for item in items:
        if "attack" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(SECONDS / FUZZERS + PATIENCE_S))


@pytest.fixture
def attack(tmp_path, monkeypatch):
    """The commands run in a folder of their own, and know no variable that changes them."""
    from attack import Attack

    found = Attack(tmp_path)
    monkeypatch.chdir(found.folder)
    for name in ("BATCH", "SEQLEN", "NHEADS", "HEADDIM", "COLUMNS", "ATTNBENCH_HISTORY"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A fuzzer that failed says how that is repeated."""
    report = yield
    attack = getattr(item, "funcargs", {}).get("attack")
    if attack is not None and attack.seed is not None and report.failed:
        again = f"ATTNBENCH_FUZZ_SECONDS=0 ATTNBENCH_FUZZ_SEED={attack.seed} python -m pytest -n 0 {item.nodeid}"
        report.sections.append(("to repeat it", f"{again}\nthe last command: {attack.last!r}"))
    return report
