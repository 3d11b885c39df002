"""The command line accepts every command in the docs."""

from __future__ import annotations

import importlib
import shutil

import pytest
from documents import GUIDES, ROOT, commands

from attnbench.cli import MODULES, VERBS, main
from attnbench.cli.parser import Parser
from attnbench.errors import UsageError
from attnbench.machine.device import Device

SHOWN = [command for path in GUIDES for command in commands(path)]
COMMANDS = [*{(one.words, one.environment): one for one in reversed(SHOWN)}.values()][::-1]
"""Each once, named by where it stands first."""
PLANNED = ("run", "compare", "check")
STEMS = {"COMMAND", "--version", "--help"}


@pytest.fixture(params=["cpu", "cuda"])
def place(request, tmp_path, monkeypatch):
    """A folder with the files that the docs speak of, on a machine without and with a GPU as far as planning goes."""
    auto = {"cpu": "cpu", "cuda": "cuda:0"}[request.param]
    tmp_path = tmp_path / request.param
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for file in ("mine.py", "old.py", "new.py"):
        text = (ROOT / "examples" / "my_kernel.py").read_text("utf-8")
        (tmp_path / file).write_text(text.replace('"chunked"', f'"{file[:-3]}"'))
    (tmp_path / "mine.toml").write_text((ROOT / "src/attnbench/suites/compare.toml").read_text("utf-8"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "attnbench.machine.devices.resolve", lambda device: Device.parse(auto if device == "auto" else device)
    )
    monkeypatch.setattr("attnbench.machine.gpus.count_gpus", lambda: 4 if auto != "cpu" else 0)
    for variable in ("BATCH", "SEQLEN", "NHEADS", "HEADDIM"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def test_the_docs_show_every_verb():
    assert {command.words[1] for command in COMMANDS} - STEMS == set(VERBS)
    assert len(SHOWN) > len(COMMANDS) > 60


@pytest.mark.parametrize(
    "command", [one for one in COMMANDS if one.words[1] in VERBS], ids=lambda one: f"{one.where}: {one.text}"
)
def test_a_command_of_the_docs_is_one(command, place, monkeypatch, capsys):
    for key, value in command.environment:
        monkeypatch.setenv(key, value)
    verb, *rest = command.words[1:]
    if verb in PLANNED and "--help" not in rest and "--resume" not in rest:
        code = main([verb, *rest, "--dry-run"])
        out, err = capsys.readouterr()
        # Cold caches, locked clocks, kernel timers and a suite's cases for cards are not for a CPU, which says so.
        said = {3: "for GPUs", 2: "selects none of its cases"}.get(code)
        assert (code == 0 and "baseline" in out) or (place.name == "cpu" and said and said in err), err
        return
    module = importlib.import_module(f"attnbench.cli.{MODULES.get(verb, verb)}")
    parser = Parser(verb, VERBS[verb])
    module.add_arguments(parser)
    if not (rest or _alone(parser)):
        return  # the bare name of a command that wants an argument
    args = parser.read(rest)
    assert args is not None
    if verb == "list":
        assert args.what in (None, *module.LISTS)
    if getattr(args, "layout", None) is not None:
        from attnbench.formats.layouts import layout_names

        assert args.layout in layout_names()


def _alone(parser):
    return all(action.nargs == "?" or action.option_strings for action in parser._actions)


def test_a_command_with_a_mistake_would_be_found(place):
    parser = Parser("run", VERBS["run"])
    importlib.import_module("attnbench.cli.run").add_arguments(parser)
    with pytest.raises(UsageError, match="flag=--seq-len is not known"):
        parser.read(["quick", "--seq-len", "4096"])
