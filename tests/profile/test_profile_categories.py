"""Categories and short names of real kernels: of the committed results, the captures, and the field."""

import json
import re
from pathlib import Path

import pytest

from attnbench.errors import UsageError
from attnbench.profile import categories, nsys_text
from attnbench.profile.names import LONGEST, short_name

ROOT = Path(__file__).parents[2]

LINES = Path(__file__).with_name("kernel_names.txt").read_text("utf-8").splitlines()
NAMES = [line.split(" | ") for line in LINES if line and not line.startswith("#")]


@pytest.mark.parametrize(("category", "short", "name"), NAMES, ids=lambda text: text[:40])
def test_a_kernel(rules, category, short, name):
    assert rules.of(name) == category
    if short != "-":
        assert short_name(name) == short


MEASURED = {
    "sdpa-flash": "attention",
    "sdpa-cudnn": "attention",
    "sdpa-efficient": "attention",
    "flash-attn-3": "attention",
    "fa3-fwd": "attention",
    "flex": "attention",
    "flashinfer": "attention",
}
"""Backends whose longest kernel is attention itself; eager's is a product of matrices or a softmax."""


def test_the_longest_kernel_of_every_measured_attention_backend_is_attention(rules):
    seen = set()
    for file in (ROOT / "benchmarks" / "results").glob("*.json"):
        records = json.loads(file.read_text()).get("records")
        for record in records if isinstance(records, list) else []:
            times = record.get("kernel_ms") or []
            if record["backend"] in MEASURED and times:
                longest = max(zip(times, record["kernels"], strict=True))[1]
                assert rules.of(longest) == "attention", f"{record['backend']}: {longest}"
                seen.add(record["backend"])
    assert len(seen) >= 4


def test_every_kernel_of_the_captures_has_a_short_name(rules):
    for file in Path(__file__).with_name("captures").glob("*.txt"):
        for row in nsys_text.parse(file.read_text(), name="x", source="x", rules=rules).kernels:
            assert 0 < len(row.short) <= LONGEST
            assert not set(row.short) & set("<>() ")


def test_our_own_kernels_are_attention(rules):
    """They are made of steps (pool, rank, select …), all of which a launch needs."""
    text = "".join(file.read_text() for file in (ROOT / "src" / "attnbench" / "kernels").rglob("*.py"))
    names = set(re.findall(r"^def (hstu_(?:bsa|dense)_\w+)\(", text, re.MULTILINE))
    assert len(names) > 10
    assert {name for name in names if rules.of(name) != "attention"} == set()


def test_rules_of_a_user_come_first(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        "[[rule]]\ncategory = 'quantise'\nmatch = 'quant_per_block'\n"
        "[[rule]]\ncategory = 'mine'\nmatch = '^_attn_fwd$'\n"
    )
    found = categories.load(str(file))
    assert found.of("quant_per_block_int8_kernel") == "quantise"
    assert found.of("_attn_fwd") == "mine"
    assert found.of("_attn_fwd_2") == "attention"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[rule]\n", "cannot be read"),
        ("", "rule"),
        ("rules = []\n", "field=rules"),
        ("[[rule]]\ncategory = 'a'\n", "fields=category are wrong; category and match"),
        ("[[rule]]\ncategory = 'a'\nmatch = '('\n", "is no regular expression"),
        ("[[rule]]\ncategory = 'idle'\nmatch = 'x'\n", "is the time when no kernel runs"),
        ("[[rule]]\ncategory = ' '\nmatch = 'x'\n", "are wrong"),
    ],
)
def test_rules_with_a_mistake(tmp_path, text, words):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"mine\.toml") as refused:
        categories.load(str(file))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value).strip()


def test_rules_that_are_not_there():
    with pytest.raises(UsageError, match="is not there"):
        categories.load("nowhere.toml")


def test_every_category_of_the_issue_has_a_rule():
    named = {rule.category for rule in categories.load().rules}
    assert named | {categories.IDLE} == set(categories.ORDER)
