"""README.md and README.zh-CN.md have the same commands, flags, code, tables and links."""

from __future__ import annotations

import itertools
import re

import pytest
from documents import FENCE, GENERATED, GUIDES, ROOT, commands, inline, name, prose

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"


def code(path) -> list[tuple[str, str]]:
    """Fenced blocks, without the comments of a shell, which are for people."""
    found = []
    for match in FENCE.finditer(path.read_text("utf-8")):
        text = match["text"]
        if match["kind"] == "bash":
            text = "\n".join(re.sub(r"\s+#.*", "", line) for line in text.splitlines())
        found.append((match["kind"], text))
    return found


def test_both_show_the_same_code():
    assert code(ENGLISH) == code(CHINESE)
    assert len(code(ENGLISH)) >= 4


def test_both_name_the_same_commands():
    english, chinese = ([command.words for command in commands(path)] for path in (ENGLISH, CHINESE))
    assert english == chinese


def test_both_name_the_same_flags_files_and_names():
    english, chinese = (set(inline(GENERATED.sub("", path.read_text("utf-8")))) for path in (ENGLISH, CHINESE))
    assert english == chinese


def test_both_have_the_same_tables_sections_and_links():
    texts = [path.read_text("utf-8") for path in (ENGLISH, CHINESE)]
    tables = [GENERATED.findall(text) for text in texts]
    assert tables[0] == tables[1]
    assert len({len(re.findall(r"^## ", text, re.MULTILINE)) for text in texts}) == 1
    links = [[link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("README")] for text in texts]
    assert links[0] == links[1]


def test_the_chinese_is_chinese():
    text = FENCE.sub("", GENERATED.sub("", CHINESE.read_text("utf-8")))
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if len(part) > 40]
    assert len(paragraphs) > 10
    assert [part for part in paragraphs if not re.search(r"[\u4e00-\u9fff]", part)] == []


def test_the_chinese_text_has_full_width_punctuation():
    text = re.sub(r"`[^`]*`", "", prose((ROOT / "README.zh-CN.md").read_text("utf-8")))
    assert re.findall(r"[\u4e00-\u9fff] ?[,;:!?] ?[\u4e00-\u9fff]|：：|，，", text) == []


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_a_table_has_a_head_with_a_cell_a_column(path):
    lines = FENCE.sub("", path.read_text("utf-8")).splitlines()
    for head, rule in itertools.pairwise(lines):
        if re.fullmatch(r"\|(?: *:?-+:? *\|)+", rule):
            assert len(re.split(r"(?<!\\)\|", head)) == rule.count("|") + 1, head
