"""`attnbench explain`: from a run of whole steps to the table, and what it refuses."""

from __future__ import annotations

import dataclasses

import pytest

from attnbench.cli import main
from attnbench.store.derive import derive
from attnbench.store.runfile import read, write

TINY = [
    "--model",
    "tiny",
    "--batch",
    "1",
    "--num-candidates",
    "5",
    "--cached",
    "62",
    "--new-tokens",
    "8",
    "--page-size",
    "32",
    "--device",
    "cpu",
    "--warmup",
    "1",
    "--iterations",
    "2",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("explain") / "run.json"
    assert (
        main(
            [
                "run",
                "hstu-serving",
                *TINY,
                "--backends",
                "serving-eager,serving-gathered[hstu-eager]",
                "--no-save",
                "--json",
                str(file),
            ]
        )
        == 0
    )
    found = read(file)
    write(derive(dataclasses.replace(found, records=tuple(map(_longer, found.records)))), file)
    return file


def _longer(record):
    """With steps of a hundred times their length: on a busy machine their attention, timed apart, can take longer."""
    return dataclasses.replace(
        record, time=dataclasses.replace(record.time, samples_ms=tuple(100 * ms for ms in record.time.samples_ms))
    )


def test_a_run_is_explained_and_its_own_tables_say_the_same(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # on a narrow terminal `explain` prints its table in parts
    assert main(["explain", str(path)]) == 0
    explained = capsys.readouterr().out
    assert explained.startswith("tiny-b1-t5-c62-n8-gpu-hit-p32-fp32\nexplained, ")
    assert "predicted" in explained
    assert main(["show", str(path), "--columns", "all"]) == 0
    shown = capsys.readouterr().out
    assert all(line in shown for line in explained.splitlines())
    assert main(["explain", str(path), "--baseline", "serving-gathered[hstu-eager]"]) == 0
    other = capsys.readouterr().out.splitlines()
    assert other[2].startswith("serving-gathered[hstu-eager] ")
    assert other[3].startswith("serving-eager ")
    assert main(["explain", str(path), "--baseline", "hstu-eager"]) == 0
    assert capsys.readouterr().out.splitlines() == other


def test_cases_that_explain_nothing_are_counted(path, tmp_path, capsys):
    found = read(path)
    more = [
        dataclasses.replace(one, case_id="another", case=one.case | {"batch": 2}, group="another", phases={})
        for one in found.records
    ]
    plan = tuple(dataclasses.replace(one, case_id="another", group="another") for one in found.plan)
    both = dataclasses.replace(found, records=(*found.records, *more), plan=(*found.plan, *plan))
    write(both, tmp_path / "two.json")
    assert main(["explain", str(tmp_path / "two.json")]) == 0
    said = capsys.readouterr().out
    assert said.endswith(
        "left out: 1 of 2 cases, without two rows whose attention is timed and takes less than the step\n"
    )


@pytest.mark.parametrize("width", [40, 80, 300])
def test_a_narrow_terminal_has_all_of_it(path, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    heads = ("attention", "attention %", "the rest", "predicted", "measured", "difference %")
    assert [head for head in heads if head not in out] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--baseline", "flex"],
            "attnbench explain: --baseline=flex is not known; one of serving-eager, serving-gathered",
        ),
        (["--out", "nowhere", "latest"], "attnbench explain: RUN=latest is not there; a run file"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_one_line(words, said, path, capsys):
    assert main(["explain", *([] if "latest" in words else [str(path)]), *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_run_without_whole_steps_is_refused(tmp_path, capsys):
    file = tmp_path / "run.json"
    assert main(["run", "hstu-serving", *TINY, "--backends", "serving-eager", "--no-save", "--json", str(file)]) == 0
    capsys.readouterr()
    assert main(["explain", str(file)]) == 2
    assert (
        "has no case with two rows whose attention is timed and takes less than the step; a run of hstu-serving"
    ) in capsys.readouterr().err
