"""What ncu's own rules advise, as a table: a line a rule."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnbench.profile.capture import Advice, Capture
from attnbench.profile.table import MOST, Table

LINK = re.compile(r"\s*\(https?://[^)\s]*\)|@url:([^@]*?):https?://[^@]*@")
"""A link in a remark, as ncu prints it and as its module gives it."""

SENTENCE = re.compile(r"(?<=[^.\d])\.(?=\s|$)|(?<=\d)\.(?=\s[A-Z]|$)")
"""The end of a sentence; a decimal point is none."""

OF_ITSELF = re.compile(r"optional metrics? \S+ could not be found")
"""A remark on what ncu was not asked to collect, which is nothing to be done about a kernel."""


def advice(captures: Sequence[Capture], *, whole: bool = False) -> Table:
    """What ncu's own rules say, what promises most first; of each rule on a kernel that which promises most.

    Args:
        captures: of ncu.
        whole: each remark as ncu has it, not its first sentence alone.
    """
    remarks = [
        (row.backend or capture.name, row.short, (row.range, row.name), one)
        for capture in captures
        for row in capture.kernels
        for one in row.advice
    ]
    remarks.sort(key=lambda item: item[-1].promise)
    first: dict[object, tuple[str, str, Advice]] = {}
    for backend, kernel, launched, one in remarks:
        if not OF_ITSELF.search(one.text):
            first.setdefault((backend, launched, one.rule), (backend, kernel, one))
    found = list(first.values())
    words = {"global": "kernel", "local": "part"}
    rows = tuple(
        (backend, kernel, one.rule, one.speedup_percent, words.get(one.scope or ""), _remark(one, whole))
        for backend, kernel, one in found[:MOST]
    )
    notes = [
        "gain is what the rule itself estimates, of the kernel's time or of the part the rule looks at alone; "
        "gains of several rules do not add up"
    ] * any(one.speedup_percent is not None for *_, one in found)
    left = len(remarks) - len(rows)
    notes += [f"{left} more in captures.json (--json): further remarks of these rules, and lesser ones"] * (left > 0)
    notes += (
        ["--verbose has all of what a rule says"]
        * any(_remark(one, False) != _remark(one, True) for *_, one in found[:MOST])
        * (not whole)
    )
    return Table(
        title="advice of ncu",
        rows=rows,
        heads=("backend", "kernel", "rule", "gain %", "of", "remark" if whole else "in short"),
        notes=tuple(notes),
        ranks=(0, 2, 1, 0, 3, 0),
    )


def _remark(one: Advice, whole: bool) -> str:
    """Without links; of several sentences the first, where not the whole is wanted."""
    words = " ".join(LINK.sub(lambda link: link[1] or "", one.text).split())
    return words if whole else SENTENCE.split(words, maxsplit=1)[0]
