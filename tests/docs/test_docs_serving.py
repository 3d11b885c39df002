"""docs/serving.md: its code runs, and its table is the configurations."""

from __future__ import annotations

from documents import ROOT, blocks

from attnbench.models.hstu_ranking.config import CONFIGS

TEXT = (ROOT / "docs/serving.md").read_text("utf-8")


def test_the_code_runs_and_the_cache_is_used_as_it_says():
    here = {}
    exec(compile(blocks(TEXT, "python")[0], "docs/serving.md", "exec"), here)  # its last line compares the scores
    counts = here["cache"].counts
    assert (counts.hit, counts.missed, counts.tokens) == (2 + 40, (2 + 40) + 10, 2 * 2 + 40 + 50)
    assert here["scores"].shape == (3, 4)


def test_the_table_is_the_configurations():
    rows = [
        f"| `{one.name}` | {one.layers} | {one.hidden} | {one.heads} | {one.dim} | `{one.variant}` | "
        f"{one.max_candidates} | {one.tasks} | {'refused' if one.recency else 'yes'} |"
        for one in CONFIGS.values()
    ]
    section = TEXT.split("## The model\n")[1].split("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| `")] == rows
