"""Help is complete, fits the terminal and is fast."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from attnbench import cli
from attnbench.presentation.block import LEGEND
from attnbench.suites.settings import SETTINGS
from attnbench.workloads.base import load_workload

SOURCE = Path(cli.__file__).parents[2]
HEAVY = ("torch", "triton", "pandas", "sqlalchemy", "openpyxl", "pynvml")


def python(*words, forbid=(), first="pass", **environ):
    """Run `attnbench` in a process of its own; what it imports of `forbid` is an error there."""
    block = f"{first}; import sys; sys.modules.update(dict.fromkeys({list(forbid)!r}))"
    code = f"{block}; from attnbench.cli import main; sys.exit(main({list(words)!r}))"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SOURCE)} | environ,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("verb", cli.VERBS)
@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_of_a_verb(attnbench, monkeypatch, no_torch, verb, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    answer = attnbench([verb, "--help"])
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"usage: attnbench {verb} ")
    assert "\nexamples:\n  attnbench" in answer.out
    assert max(map(len, answer.out.splitlines())) <= columns
    assert "  -h" not in answer.out


def test_the_help_of_all(attnbench):
    answer = attnbench("--help")
    assert answer == attnbench([]) == attnbench("help") == attnbench("--help-all")
    assert attnbench("help run hstu-bsa") == attnbench("run hstu-bsa --help")
    for verb in cli.VERBS:
        assert re.search(rf"^  {verb} ", answer.out, re.MULTILINE)
    assert max(map(len, answer.out.splitlines())) <= 80
    for words in ("--version", "-V", "version"):
        assert attnbench(words).out == f"attnbench {cli.__version__}\n"


def test_every_axis_and_setting_is_a_flag(attnbench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    text = attnbench("run --help-all").out
    for axis in load_workload("attention").axes:
        assert f"--{axis.name.replace('_', '-')}" in text
    for one in SETTINGS:
        assert f"{one.flag} {one.metavar}" in text
    for flag in (
        "--no-causal",
        "--causal-both",
        "--no-grad",
        "--backends",
        "--skip",
        "--baseline",
        "--resume",
        "--json",
        "--csv",
        "--xlsx",
        "--md",
        "--no-save",
        "--out",
        "--dry-run",
        "--quiet",
        "BATCH, SEQLEN",
    ):
        assert flag in text


@pytest.mark.parametrize("verb", ["run", "compare", "check"])
def test_the_short_help_has_the_usual_flags_and_says_where_the_others_are(attnbench, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = attnbench([verb, "--help"]).out, attnbench([verb, "--help-all"]).out
    assert attnbench([verb, "-h"]).out == short
    flags = [set(re.findall(r"^ +(?:-\w(?: \S+)?, )?(--[a-z0-9-]+)", text, re.MULTILINE)) for text in (short, whole)]
    assert {"--seqlen", "--backends", "--device", "--csv", "--quiet"} < flags[0] < flags[1]
    assert {"--seqlen-k", "--block-size", "--seed", "--xlsx"} <= flags[1] - flags[0]
    assert "HSTU" in whole
    assert "HSTU" not in short.partition("examples:")[0]
    count = re.search(rf"`attnbench {verb} --help-all` shows (\d+) more flags", short)
    assert count
    assert int(count[1]) == len(flags[1]) - len(flags[0])
    assert len(short.splitlines()) < 0.75 * len(whole.splitlines())


@pytest.mark.parametrize("verb", cli.VERBS)
def test_no_help_is_a_page_of_flags_that_few_need(attnbench, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    assert len(attnbench([verb, "--help"]).out.splitlines()) < 90


@pytest.mark.parametrize(
    ("words", "there", "not_there"),
    [
        ("run hstu-serving", ("--num-candidates", "--cached", "--page-size", "--backends"), ("--seqlen", "--frames")),
        ("run video --device cpu", ("--frames", "--dense-steps", "--dtype"), ("--nheads", "--cached")),
        ("check sparse", ("--pattern", "--density", "--causal"), ("--frames", "--cached")),
        ("run quick", ("--seqlen", "--headdim"), ("--pattern", "--cached")),
    ],
)
def test_the_help_beside_a_suite_has_the_axes_of_its_workload(attnbench, words, there, not_there):
    said = attnbench(f"{words} --help")
    assert (said.code, said.err) == (0, "")
    shown = {line.split()[0].rstrip(",") for line in said.out.splitlines() if line.startswith("  --")}
    assert shown >= set(there)
    assert not shown & set(not_there)


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_the_help_says_what_the_signs_of_a_table_mean(attnbench, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    text = attnbench([verb, "--help"]).out
    assert " ".join(text.split("\n\n")[-1].split()) == LEGEND
    assert "± the longer arm of the 95 % interval" in LEGEND


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["list", "backends"], ["list", "suites"]])
def test_nothing_heavy_is_imported(words):
    done = python(*words, forbid=(*HEAVY, "numpy") if "list" not in words else HEAVY)
    assert done.returncode == 0, done.stderr
    assert done.stdout


ADAPTERS = len(list(Path(cli.__file__).parents[1].glob("backends/*.py")))
"Each is a module of its own, and the list reads all."


@pytest.mark.parametrize(("words", "most"), [(["--help"], 100), (["list", "backends"], 265 + ADAPTERS)])
def test_it_answers_at_once(words, most):
    """By what it takes time for: modules, of which a machine imports some thousand a second, and no other process."""
    count = (
        "import sys, atexit; before = len(sys.modules); "
        "atexit.register(lambda: print(len(sys.modules) - before, 'modules', file=sys.stderr)); "
        "sys.addaudithook(lambda event, args: event == 'subprocess.Popen' and print('a process', file=sys.stderr))"
    )
    done = python(*words, first=count)
    assert done.returncode == 0
    match = re.fullmatch(r"(\d+) modules\n", done.stderr)
    assert match, done.stderr
    assert int(match[1]) < most


INTERRUPTING = """
import sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [("attnbench.cli", ""), ("attnbench.cli.output", ""), ("attnbench.cli.parser", "attnbench: interrupted\n")],
)
@pytest.mark.parametrize("entry", ["script", "module"])
def test_ctrl_c_while_it_is_imported_is_no_traceback(module, said, entry):
    start = {
        "script": "from attnbench.__main__ import main; sys.exit(main())",
        "module": "import runpy; runpy.run_module('attnbench', run_name='__main__', alter_sys=True)",
    }[entry]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTING.format(module=module) + start, "list", "timers"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_the_command_is_the_guarded_one():
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == {"attnbench": "attnbench.__main__:main"}
