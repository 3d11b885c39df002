"""Rows of the table of what calls cost the host: two files of `call_cost.py`, and its bars."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

BARS = {
    "flash": ("fa3-fwd", 1.0),
    "flash-packed": ("fa3-fwd-packed", 1.0),
    "hstu": ("fa3-fwd", 1.0),
    "hstu-paged": ("fa3-fwd", 1.0),
    "hstu-bsa": ("fa3-fwd", 2.5),
    "flash-fwd-bwd": ("flash", 2.5),
    "hstu-fwd-bwd": ("hstu", 2.5),
    "hstu-bsa-fwd-bwd": ("hstu-bsa", 2.5),
}
"What may cost how many times as much as what."
NEW_SHAPE_US = 1000.0


def verdict(name: str, medians: Mapping[str, float]) -> tuple[str, str]:
    """The bar of a call, and whether it is met; nothing where there is none or its other was not measured."""
    other, most = BARS.get(name, ("", 0.0))
    if other not in medians or name not in medians:
        return "", ""
    ratio = medians[name] / medians[other]
    return f"{ratio:.2f} of `{other}`, {most:g} at most", "reached" if ratio <= most else "**missed**"


def rows(data: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A line for each call, for shapes never seen, and for numbers of rows never seen."""
    medians = {name: found["median_us"] for name, found in data["calls"].items() if "median_us" in found}
    for name in medians:
        found, earlier = data["calls"][name], before["calls"].get(name, {})
        yield (
            f"`{name}`",
            f"{found['median_us']:.0f} µs",
            f"{found['low_us']:.0f} to {found['high_us']:.0f}",
            f"{earlier['median_us']:.0f} µs" if "median_us" in earlier and not name.startswith(("fa3", "sdpa")) else "",
            *verdict(name, medians),
        )
    for name, found in data["new_shapes"].items():
        median = statistics.median(found["times_us"])
        met = "reached" if median <= NEW_SHAPE_US else "**missed**"
        yield f"`{name}`, a new shape", f"{median:.0f} µs", "", "", f"{NEW_SHAPE_US:g} µs at most", met
    for name, found in data.get("new_rows", {}).items():  # measured since calls are kept whatever their rows
        tenths = f"{found['low_us']:.0f} to {found['high_us']:.0f}"
        yield f"`{name}`, another number of rows", f"{found['median_us']:.0f} µs", tenths, "", "", ""
