"""README.md and README.zh-CN.md say the same: commands, flags, code, tables, links."""

from __future__ import annotations

import re

from documents import FENCE, GENERATED, ROOT, commands, inline

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
