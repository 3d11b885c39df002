"""Every link and file in a document exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import GENERATED, GUIDES, ROOT, blocks, inline, name, prose

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"(?:[\w.-]+/)+[\w.-]+|[\w-]+\.(?:md|py|toml|json)")
FOLDERS = (
    "src/",
    "tests/",
    "docs/",
    "examples/",
    "benchmarks/",
    "machine/",
    "measure/",
    "stats/",
    "check/",
    "suites/",
    "store/",
    "workloads/",
)
NOT_OURS = {
    "mine.py",
    "mine.toml",
    "old.py",
    "new.py",
    "my_package.attnbench_backend",
    "results/",  # the user's own
    "pt_bench.py",
    "ncu_bench.py",
    "run_kernels.py",
    "kernel_configs.py",
    "utils.py",
    "minimal_benchmark.py",
    "compare_implementations.py",
    "setup.py",
    "results.json",
    "SUMMARY.md",
    "quick.json",  # of the seeds, or made
}


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path: Path) -> list[str]:
    return LINK.findall(prose(path.read_text("utf-8")))


@pytest.mark.parametrize("path", [*GUIDES, ROOT / "DESIGN.md", ROOT / "CHANGELOG.md"], ids=name)
def test_relative_links_lead_somewhere(path):
    for link in links(path):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{name(path)}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{name(path)}: {link}"


def test_the_links_are_found_at_all():
    assert len([link for path in GUIDES for link in links(path)]) > 15
    assert "on-an-h200" in anchors(ROOT / "docs/measuring.md")


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_files_named_in_code_are_there(path):
    text = GENERATED.sub("", path.read_text("utf-8"))
    for code in [*inline(text), *blocks(text, "bash")]:
        for file in FILE.findall(code):
            if file.removeprefix("./") in NOT_OURS or not (file.startswith(FOLDERS) or file.endswith((".md", ".toml"))):
                continue
            if "<" in code or "*" in code or file.endswith("/test_"):
                continue
            places = (ROOT, ROOT / "src/attnbench", path.parent)
            assert any((place / file).exists() for place in places), f"{name(path)}: {file} in `{code}`"


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_no_path_or_host_of_a_machine(path):
    text = path.read_text("utf-8")
    assert not re.search(r"/(?:home|root|tmp|work|Users)/\w", text)
    ours = r"github\.com/(?:Dao-AILab|meta-recsys|mit-han-lab|thu-ml)/|download\.pytorch\.org/whl/"
    assert not re.search(rf"https?://(?!{ours})", text)
