"""An attack for each fuzzer: its folder, its seeds, and how a failure is replayed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / "profile"), str(Path(__file__).parents[1] / "store")]


def pytest_collection_modifyitems(items):
    from attack import FUZZERS, SECONDS

    for item in items:
        if "attack" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(SECONDS / FUZZERS + 170))


@pytest.fixture
def attack(tmp_path, monkeypatch, request):
    """Each input of a failing fuzzer is printed with its seed: pytest shows what a failing test printed."""
    from attack import Attack

    found = Attack(tmp_path)
    monkeypatch.chdir(found.folder)
    for name in ("BATCH", "SEQLEN", "NHEADS", "HEADDIM", "COLUMNS", "ATTNBENCH_HISTORY"):
        monkeypatch.delenv(name, raising=False)
    plain = found.seeds

    def seeds():
        for seed, source in plain():
            sys.stdout.write(f"ATTNBENCH_FUZZ_SECONDS=0 ATTNBENCH_FUZZ_SEED={seed} python -m pytest -n 0 "
                             f"{request.node.nodeid}\n")
            yield source

    found.seeds = seeds
    yield found
    sys.stdout.write(f"the last command: {found.last!r}\n")
