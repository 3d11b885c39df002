"""An adapter declares itself tested if and only if a committed run has a passed record of it."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from attnbench.backends.registry import all_backends

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@cache
def passed() -> dict[str, set[str]]:
    """Cards and torch versions on which each backend has a passed record, as `tested` words them.

    A configuration counts: of some backends every row is one, such as ``video[sdpa]``.
    """
    found: dict[str, set[str]] = {}
    for path in RESULTS.glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        if "records" not in data or "run" not in data:
            continue
        for record in data["records"]:
            place = data["run"]["environments"][record["environment"]] if record["environment"] is not None else {}
            if record["status"] == "passed" and place.get("gpu"):
                version = re.match(r"\d+\.\d+", place["torch"])[0]
                found.setdefault(record["backend"].partition("[")[0], set()).add(f"{place['gpu']}, torch {version}")
    return found


@pytest.mark.parametrize("name", sorted(name for name, one in all_backends().items() if "cuda" in one.devices))
def test_what_it_says_is_on_record(name: str) -> None:
    said = all_backends()[name].tested
    assert said is None if name not in passed() else said in passed()[name]
