"""Charts of the docs show what the committed results hold."""

from __future__ import annotations

import re

import pictures
from documents import ROOT

from attnbench.report.plots import picture

IMAGES = ROOT / "docs/images"
MARK = re.compile(rb'aria-label="([^"]*)"')


def test_each_picture_has_the_marks_of_its_results_and_stands_in_the_docs():
    text = "".join((ROOT / f"docs/{name}.md").read_text("utf-8") for name in ("serving", "sparse"))
    names = []
    for name, figure in pictures.drawn():
        committed = (IMAGES / f"{name}.svg").read_bytes()
        marks = MARK.findall(committed)
        assert len(marks) > 20
        assert marks == MARK.findall(picture(figure, "svg"))
        assert f"](images/{name}.svg)" in text
        names.append(name)
    assert sorted(names) == sorted(path.stem for path in IMAGES.glob("*.svg"))
