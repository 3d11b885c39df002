"""The documents, and the parts of one that a test checks."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDES = [
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
]
"""What a user reads; DESIGN.md and CHANGELOG.md also speak of what is not there yet."""

FENCE = re.compile(r"^ *```(?P<kind>\w*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
GENERATED = re.compile(r"<!-- begin: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One call of attnbench as a document writes it."""

    where: str
    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return shlex.join(self.words)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str, *kinds: str) -> list[str]:
    """Fenced blocks of these kinds, or of all."""
    return [match["text"] for match in FENCE.finditer(text) if not kinds or match["kind"] in kinds]


def prose(text: str) -> str:
    """A document without fenced blocks and generated tables."""
    return GENERATED.sub("", FENCE.sub("", text))


def inline(text: str) -> list[str]:
    """Inline code."""
    return INLINE.findall(FENCE.sub("", text).replace("\\|", "|"))


def commands(path: Path) -> list[Command]:
    """Every `attnbench VERB …` of a document, in blocks for a shell and in inline code."""
    text = path.read_text("utf-8")
    lines = [line for block in blocks(text, "bash", "") for line in block.replace("\\\n", " ").splitlines()]
    lines += inline(text)
    return [command for line in lines for part in _parts(line) if (command := _command(name(path), part))]


def _parts(line: str) -> list[list[str]]:
    """The commands of a line of shell, in words; comments and redirections left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # inline code that is no shell
        return []
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("|", "&&", ";", ">", "<", "||"):
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _command(where: str, words: list[str]) -> Command | None:
    environment = []
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        key, _, value = words.pop(0).partition("=")
        environment.append((key, value))
    if words[:2] == ["uv", "run"]:
        words = words[2:]
    if len(words) < 2 or words[0] != "attnbench" or "…" in words:
        return None
    return Command(where, tuple(words), tuple(environment))
