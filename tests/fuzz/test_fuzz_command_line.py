"""Command lines with hostile values that do not measure anything."""

from __future__ import annotations

import argparse
import importlib
import json

import pytest
from attack import TEXTS

from attnbench.cli import MODULES, VERBS
from attnbench.cli.parser import Parser
from attnbench.errors import Unavailable
from attnbench.store import runfile
from made_up_run import make_run

MEASURING = {"run", "compare", "check", "profile", "tune"}
"""Given --dry-run."""
WORDS = [
    "0",
    "1",
    "2",
    "16",
    "3.5",
    "-1:5",
    "fp32",
    "a,b",
    "1,2,3",
    "both",
    "none",
    "30d",
    "2026-11-20",
    "3%",
    "run.json",
    "3f9a01bc",
    "0badcafe",
    "quick",
    "compare",
    "eager",
    "sdpa-*",
    "seed-001",
    "seqlen",
    "all",
    "-",
    "x.csv",
    "cupti",
    "cpu",
    "cuda",
    "cuda:99",
    "zipf",
    "3:4:5",
    "hstu",
    "attention",
    "backends",
    "configs",
    "kernels",
]
NEVER = {"--watch", "--path"}
"""Waits for Ctrl-C; names folders that are imported from."""


def verbs():
    """Arguments of each verb."""
    for verb in VERBS:
        if verb != "doctor":  # examines the machine for seconds, whatever it is given
            parser = Parser(verb, VERBS[verb])
            importlib.import_module(f"attnbench.cli.{MODULES.get(verb, verb)}").add_arguments(parser)
            yield verb, [action for action in parser._actions if action.dest != "help"]


def given(action: argparse.Action, source):
    """An argument with some value."""
    word = source.choice(TEXTS + WORDS + WORDS)
    if action.metavar in ("PATH", "DIR"):  # who names another folder means it
        word = word.replace("/", "_").replace("..", "._")[:80] if "@" not in word else "x"
    flags = [flag for flag in action.option_strings if flag not in NEVER]
    if not action.option_strings:
        return [word]
    if not flags:
        return []
    flag = source.choice(flags)
    if action.nargs == 0:
        return [flag]
    return [f"{flag}={word}"] if source.random() < 0.5 else [flag, word]


@pytest.fixture
def nothing_is_measured(monkeypatch):
    """`links` and `load` have no --dry-run: they end where they would begin to measure."""

    def would_measure(*_, **__):
        raise Unavailable("this would measure")

    monkeypatch.setattr("attnbench.machine.links.measure_links", would_measure)
    monkeypatch.setattr("attnbench.cli.loading.make_bench", would_measure)


@pytest.mark.usefixtures("nothing_is_measured")
def test_command_lines(attack):
    known = dict(verbs())
    (attack.folder / "run.json").write_text(runfile.dumps(make_run()))
    (attack.folder / "0badcafe").write_text(json.dumps({"no": "run"}))
    for source in attack.seeds():
        verb = source.choice(sorted(known))
        words = [verb, *(["--dry-run"] if verb in MEASURING else [])]
        for action in source.sample(known[verb], min(len(known[verb]), source.choice((0, 1, 2, 3, 5)))):
            words += given(action, source)
        attack.call(words)
    alone = source.choice(TEXTS)
    assert attack.call([alone])[0] == (0 if alone == "--help" else 2)
