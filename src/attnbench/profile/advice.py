"""The advice of ncu's own rules as a table, one row per rule."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnbench.profile.capture import Advice, Capture
from attnbench.profile.table import MOST, Table

LINK = re.compile(r"\s*\(https?://[^)\s]*\)|@url:([^@]*?):https?://[^@]*@")
"""A link in a remark, as ncu prints it and as its Python module returns it."""

SENTENCE = re.compile(r"(?<=[^.\d])\.(?=\s|$)|(?<=\d)\.(?=\s[A-Z]|$)")
"""The end of a sentence, but not a decimal point."""

OF_ITSELF = re.compile(r"optional metrics? \S+ could not be found")
"""A remark on a metric that ncu was not asked to collect; it gives no advice about the kernel."""


def advice(captures: Sequence[Capture], *, whole: bool = False) -> Table:
    """Return the advice of ncu's rules, highest promise first; of each rule on a kernel only the best remark.

    Args:
        captures: captures of ncu.
        whole: show the whole text of each remark, not only its first sentence.
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
        "gain is the rule's own estimate, of the kernel's time or only of the part the rule looks at; "
        "gains of several rules do not add up"
    ] * any(one.speedup_percent is not None for *_, one in found)
    left = len(remarks) - len(rows)
    notes += [f"{left} more in captures.json (--json): other remarks of these rules, and lesser rules"] * (left > 0)
    notes += (
        ["--verbose shows the whole text of each rule"]
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
    """Return the remark without links; only its first sentence unless `whole`."""
    words = " ".join(LINK.sub(lambda link: link[1] or "", one.text).split())
    return words if whole else SENTENCE.split(words, maxsplit=1)[0]
