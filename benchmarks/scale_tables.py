"""What `scale.py` measured, as the docs show it: sweeps on one GPU and two, a busy neighbour, and Ray."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = ("what", "measured", "wanted")
LEAST_SPEEDUP, MOST_APART, MOST_OF_RAY = 1.8, 0.5, 3.0
"Of two GPUs over one; per cent of a ratio beside a busy neighbour; per cent that Ray takes longer on one GPU."


def rows(path: Path, with_ray: Path) -> list[list[str]]:
    """A row for each figure."""
    local, ray = (json.loads(one.read_text("utf-8")) for one in (path, with_ray))
    steady = local["one_steady_s"] / local["two_steady_s"]
    whole = f"{local['one_s']:.1f} s on one GPU, {local['two_s']:.1f} s on two: **{local['speedup']:.2f}x**"
    return [
        [f"sweep of {local['groups']} groups, start of workers included", whole, at_least(local["speedup"])],
        ["the same, from the first group's end to the last's", f"**{steady:.2f}x**", ""],
        [
            "ratios beside a busy neighbour GPU against those alone",
            apart(local["beside_apart"]),
            at_most(max(local["beside_apart"]), MOST_APART),
        ],
        ["ratios on one GPU while the other measures, against those alone", apart(local["two_gpus_apart"]), ""],
        [
            f"{ray['groups']} groups on one GPU through Ray, against the local engine",
            f"{ray['whole_percent']:+.1f} %",
            f"at most {MOST_OF_RAY:g} %: open",
        ],
        ["the same, from the first group's end to the last's", f"{ray['steady_percent']:+.1f} %", ""],
        ["ratios through Ray against local ones", apart(ray["engines_apart"]), ""],
        ["ratios of two local runs", apart(ray["locals_apart"]), ""],
    ]


def apart(per_cent: Sequence[float]) -> str:
    """How far ratios of the same groups lie apart."""
    return f"median {statistics.median(per_cent):.2f} %, most {max(per_cent):.2f} % of {len(per_cent)}"


def at_least(value: float) -> str:
    """A speed-up held against the bar."""
    return f"at least {LEAST_SPEEDUP}x: {'reached' if value >= LEAST_SPEEDUP else '**missed**'}"


def at_most(value: float, most: float) -> str:
    """Per cent held against a bar."""
    return f"at most {most:g} %: {'reached' if value <= most else '**missed**'}"


def environment(path: Path) -> dict[str, Any]:
    """Where it was measured."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))["environments"][0]
    return found
