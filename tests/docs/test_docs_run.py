"""Commands of the docs are carried out, all but the measuring: they end well, and what they are to write is there."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import shutil
import sys
from pathlib import Path

import pytest
from documents import GUIDES, ROOT, commands

sys.path.insert(0, str(ROOT / "tests/profile"))
import made_up_captures

from attnbench.cli import main
from attnbench.machine.device import Device
from attnbench.record import Memory
from attnbench.store.runfile import default_path, now, read, write

WRITING = ("--csv", "--xlsx", "--html", "--json", "--md", "--plots", "--to")
MEASURING, READING = (
    ("run", "compare", "check"),
    ("report", "export", "diff", "import", "show", "history", "list", "data"),
)
PLANNING = ("tune", "profile")
PLACEHOLDERS = {"A", "B", "RUN", "RUN...", "DIR", "PATH", "SUITE", "BACKEND", "FILE", "…"}
LEFT_OUT = {
    "actual_sparsity": "an axis of runs with kernels that this package does not bring",
    "results/serving.json": "a run of serving, which tests/formats exports",
    "serving": "the folder of that export",
    "--resume": "tests/cli resumes runs",
    "--source": "KuaiRand-1K, which is fetched by hand: tests/datasets has files of its kind",
    "--db": "a server of PostgreSQL, which tests/store asks for",
    "all": "two benchmarks: tests/cli/test_profile_cli.py carries it out",
}
"""What no run made here can have, and why."""


def _shown(verbs):
    found = {}
    for path in GUIDES:
        for command in commands(path):
            rest = command.words[2:]
            if (
                command.words[1] in verbs
                and not PLACEHOLDERS & set(rest)
                and not LEFT_OUT.keys() & set(rest)
                and (rest or command.words[1] in (*MEASURING, "history"))
                and "--help" not in rest
            ):
                found.setdefault((command.words[1:], command.environment), command.where)
    return [
        pytest.param(words, environment, id=f"{where}: {' '.join(words)}")
        for (words, environment), where in found.items()
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with the files that the docs speak of."""
    folder = tmp_path_factory.mktemp("docs")
    spec = importlib.util.spec_from_file_location("cli_conftest", ROOT / "tests/cli/conftest.py")
    fakes = importlib.util.module_from_spec(spec)
    sys.modules["cli_conftest"] = fakes
    spec.loader.exec_module(fakes)
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    patch.setattr("attnbench.sweep.run.execute", fakes.FakeSweep().execute)
    patch.setattr(
        "attnbench.machine.devices.resolve", lambda device: Device.parse("cpu" if device == "auto" else device)
    )
    for variable in ("BATCH", "SEQLEN", "NHEADS", "HEADDIM"):
        patch.delenv(variable, raising=False)
    patch.setenv("ATTNBENCH_HISTORY", "sqlite:///results/history.sqlite")
    shutil.copytree(ROOT / "examples", "examples")
    function = "def attention(q, k, v, causal, scale):\n    return v\n"
    for file in ("mine.py", "old.py", "new.py"):
        Path(file).write_text(function)
    Path("mine.toml").write_text((ROOT / "src/attnbench/suites/compare.toml").read_text("utf-8"))
    few = ["--backends", "eager,sdpa-flash,flash-triton", "--device", "cpu", "--quiet"]
    shapes = ["--headdim", "64,128", "--seqlen", "512,1024", "--dtype", "bf16"]
    for name, words in {
        "sweep": ["flash-sweep", *shapes, *few],
        "hstu": ["hstu-bsa", "--device", "cpu", "--quiet"],
        "minimal": ["minimal", "--device", "cpu", "--quiet"],
    }.items():
        assert main(["run", *words, "--out", name]) == 0
        [made] = Path(name).glob("*.json")
        Path("results").mkdir(exist_ok=True)
        shutil.copy(made, f"results/{name}.json")
    sweep = read(Path("results/sweep.json"))
    write(
        dataclasses.replace(
            sweep,
            records=tuple(
                dataclasses.replace(
                    record, memory=Memory(peak_allocated_mb=64.0, peak_reserved_mb=80.0) if record.time else None
                )
                for record in sweep.records
            ),
        ),
        Path("results/sweep.json"),
    )
    for number, name in enumerate(("before.json", "after.json")):
        one = dataclasses.replace(read(Path("results/sweep.json")), id=f"0badcaf{number}")
        write(one, Path(name))
        write(one, default_path(one, "results"))
    shutil.copy("before.json", "sweep.json")
    shutil.copy("after.json", "other.json")
    card = read(ROOT / "benchmarks/results/quick-h200.json")
    write(dataclasses.replace(card, id="1a2b3c4d", started=now()), Path("results/card.json"))
    assert main(["history", "--add", "results/card.json"]) == 0
    for name in ("profile_fa", "profile_sage2"):
        made_up_captures.nsys_sqlite(Path(f"{name}.sqlite"))
    assert main(["export", "results/hstu.json", "--layout", "seed-000", "--to", "benchmark_results.json"]) == 0
    assert main(["export", "results/sweep.json", "--layout", "seed-001", "--to", "old-sweep.csv"]) == 0
    assert main(["export", "results/minimal.json", "--layout", "seed-004", "--to", "seed-004"]) == 0
    for name in ("baseline.txt", "current.txt"):
        shutil.copy("seed-004/baseline_benchmark.txt", name)
    yield folder
    patch.undo()


@pytest.mark.parametrize(("words", "environment"), _shown(MEASURING))
def test_a_command_that_measures_plans_shows_and_writes(runs, monkeypatch, capsys, words, environment):
    for key, value in environment:
        monkeypatch.setenv(key, value)
    code = main(list(words))
    out, err = capsys.readouterr()
    if code == 3:  # cold caches and locked clocks
        assert "for GPUs" in err
        return
    if code == 2:  # a suite's cases for a card; test_docs_commands.py plans them for one
        assert "selects none of its cases" in err
        return
    assert code == 0, err
    assert out
    _written(words)


@pytest.mark.parametrize(("words", "environment"), _shown(READING))
def test_a_command_that_reads_runs_answers_and_writes(runs, capsys, words, environment):
    if "previous" in words:  # commands that measured have left runs of other suites
        for number in range(2):
            one = dataclasses.replace(
                read(Path("before.json")), id=f"0badcaf{number + 5}", started=f"2099-01-01T00:00:0{number}Z"
            )
            write(one, default_path(one, "results"))
    code = main(list(words))
    out, err = capsys.readouterr()
    # A run that a command of the docs measured before may stand in place of the fixture's, which cannot be judged.
    assert code in ((0, 3) if words[0] == "diff" else (0,)), err
    assert out
    _written(words)


@pytest.mark.parametrize(("words", "environment"), _shown(PLANNING))
def test_a_command_that_tunes_or_profiles_shows_what_it_would_do(runs, monkeypatch, capsys, words, environment):
    """With a card, which there is none of here; test_docs_on_card.py carries them out on one."""
    for key, value in environment:
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(
        "attnbench.machine.devices.resolve", lambda device: Device.parse("cuda:0" if device == "auto" else device)
    )
    monkeypatch.setattr("attnbench.backends.base.Backend.probe", lambda backend: None)
    code = main([*words, *([] if "--from" in words else ["--dry-run"])])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out
    if "--from" not in words:
        assert "launches before the window" in out if words[0] == "profile" else words[1] in out
    if "--table" in words and "--from" in words:
        assert "Attn (%)" in out


def _written(words):
    for flag, value in itertools.pairwise(words):
        if flag in WRITING and value != "-":
            path = Path(value)
            assert path.exists() or list(path.parent.glob(f"{path.stem}.*")), value
