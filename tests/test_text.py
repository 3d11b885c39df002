"""Text from outside: unprintable characters are escaped, and no password is repeated."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import zipfile

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.cli.output import Output
from attnbench.formats.exports import exporter_names, load_exporter
from attnbench.formats.layouts import layout_names, load_layout
from attnbench.record import Environment, Settings, Status
from attnbench.report.html import page
from attnbench.report.plots import write_plots
from attnbench.report.terminal import Terminal
from attnbench.store import runfile
from attnbench.store.files import write_text
from attnbench.store.history.opening import open_history
from attnbench.store.history.place import Place
from attnbench.store.history.reading import text_of
from attnbench.store.history.writing import add
from attnbench.text import UNSHOWN, shown, spelled, without_passwords
from made_up_run import H200, make_case, make_group, make_lost, make_run

HOSTILE = "a\udc80b\x1b[2J\rc\x9bd\u202ee\u2028f\x7fg\ufeff\U000e0041\ufffe\x00"
SPELLED = r"a\udc80b\u001b[2J\u000dc\u009bd\u202ee\u2028f\u007fg\ufeff\udb40\udc41\ufffe\u0000"


def hostile_run():
    """A run in which every text is hostile, the keys of its mappings too."""
    hostile = {"dtype": HOSTILE}
    records = [dataclasses.replace(
        item, case=item.case | hostile, workload=HOSTILE,
        case_id=HOSTILE, group=HOSTILE, backend=f"{item.backend}{HOSTILE}", version=HOSTILE,
        config=HOSTILE, source_hash=HOSTILE, kernels=(HOSTILE,), notes=(HOSTILE,), repro=HOSTILE,
        phases={HOSTILE: item.time}, timers={HOSTILE: item.time, "b": item.time}, errors={HOSTILE: item.errors["out"]},
        counters={HOSTILE: 1.0}, ceilings={**item.ceilings, HOSTILE: 1.0},
        time=dataclasses.replace(item.time, timer=HOSTILE, l2=HOSTILE, regime=HOSTILE, stopped_by=HOSTILE),
    ) for size in (512, 1024) for item in make_group(make_case(seqlen=size))]  # fmt: skip
    records.append(make_lost(make_case() | hostile, HOSTILE, Status.FAILED, HOSTILE))
    environment = dataclasses.replace(H200, os=HOSTILE, gpu=HOSTILE, packages={HOSTILE: HOSTILE})
    return make_run(
        records,
        suite=HOSTILE,
        command=HOSTILE,
        started=HOSTILE,
        backend_files=(HOSTILE,),
        environments=(environment,),
        settings=Settings(device="cuda", timer=HOSTILE, baseline=HOSTILE),
    )


def test_what_cannot_be_shown_is_written_as_an_escape():
    assert spelled(HOSTILE) == SPELLED
    assert spelled("µ ± → \t 模型 🏆 e\u0301 a\u200db\n") == "µ ± → \t 模型 🏆 e\u0301 a\u200db\n"


@given(st.text(st.characters(codec=None)))
def test_spelling_is_done_once_and_leaves_nothing(text):
    again = spelled(text)
    assert spelled(again) == again
    assert not UNSHOWN.search(again)
    assert again.encode().decode() == again


@given(st.dictionaries(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)), max_size=3))
def test_json_means_the_same_when_it_is_spelled(data):
    for ascii_ in (False, True):
        assert json.loads(spelled(json.dumps(data, ensure_ascii=ascii_))) == data


def test_every_text_of_a_run_is_spelled_on_entering_it():
    run = hostile_run()
    assert not UNSHOWN.search(repr(run).replace("\\\\", ""))
    assert run.suite == run.records[0].notes[0] == run.records[-1].reason == SPELLED
    assert Environment(os="a\r", python="3").os == r"a\u000d"
    data = json.loads(runfile.dumps(make_run()))
    data["records"][0]["notes"] = [HOSTILE]
    data["records"][0]["phases"] = {HOSTILE: data["records"][0]["time"]}
    first = runfile.loads(json.dumps(data)).records[0]
    assert (first.notes, set(first.phases)) == ((SPELLED,), {SPELLED})


def test_no_writer_passes_it_on_and_none_fails(tmp_path):
    run = hostile_run()
    texts = {name: load_exporter(name).render(run) for name in exporter_names()}
    others = ("seed-000", "seed-002", "seed-003")  # have no cases of this workload
    texts |= {name: (load_layout(name).console(run) or "").encode() for name in layout_names() if name not in others}
    book = texts.pop("xlsx")
    cells = [cell for row in openpyxl.load_workbook(io.BytesIO(book))["results"].iter_rows(values_only=True)
             for cell in row if isinstance(cell, str)]  # fmt: skip
    with zipfile.ZipFile(io.BytesIO(book)) as parts:
        texts |= {name: parts.read(name) for name in parts.namelist() if name.endswith(".xml")}
    assert SPELLED in cells
    for name, text in texts.items():
        assert not UNSHOWN.search(text.decode().replace("\r\n", "\n")), name
        assert name.endswith(".xml") or "udc80" in text.decode()
    assert runfile.loads(texts["json"].decode(), statistics=False) == run


def test_page_and_pictures_take_it(tmp_path):
    run = runfile.loads(runfile.dumps(hostile_run()))
    text = re.sub(r"<(script|style)>.*?</\1>", "", page([run]), flags=re.DOTALL)
    assert not UNSHOWN.search(text)
    assert SPELLED in text
    [first, *_] = write_plots([run], tmp_path, x="seqlen", metric="time_ms", formats=("svg",))
    assert first.read_text().startswith("<svg")


def test_a_history_takes_it_and_gives_it_back(tmp_path):
    run = hostile_run()
    with open_history(Place("h", tmp_path / "h.sqlite"), write=True) as history:
        assert add(history, run) == "added"
        assert runfile.loads(text_of(history, run.id)[1], statistics=False) == run


def test_neither_terminal_nor_file_gets_it(capsys, tmp_path):
    Output().line(HOSTILE)
    Output().note(f"\x1b[2J\n{HOSTILE[:8]}\r\x85more")
    said = capsys.readouterr()
    assert said.out == f"{SPELLED}\n"
    assert said.err == r"\u001b[2J a\udc80b\u001b[2J more" + "\n"
    write_text(tmp_path / "a", HOSTILE)
    assert (tmp_path / "a").read_text() == SPELLED


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("RUN=postgresql://me:secret@host/db is not there", "RUN=postgresql://me:***@host/db is not there"),
        ("https://me:se/cr@et@host:80/x", "https://me:***@host:80/x"),
        ("path=postgresql:/me:secret@host/db is not there", "path=postgresql:/me:***@host/db is not there"),
        ("a postgres+psycopg://:pw@h b://c:d@e", "a postgres+psycopg://:***@h b://c:***@e"),
        ("postgresql://h/db?user=me&password=secret&x=1", "postgresql://h/db?user=me&password=***&x=1"),
        (".postgresql://me:secret@host/db", ".postgresql://me:***@host/db"),
        ("-postgresql://me:secret@host/db", "-postgresql://me:***@host/db"),
        ("sslpassword=abc, PGPASSWORD=x y", "sslpassword=***, PGPASSWORD=*** y"),
        ("http://host:8080/x", "http://host:8080/x"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("a: b=c; mail me@host", "a: b=c; mail me@host"),
    ],
)
def test_no_password_is_repeated(text, plain, capsys):
    assert without_passwords(text) == plain
    Output().note(text)
    assert capsys.readouterr().err == f"{plain}\n"
    Terminal(Output().console()).line(text)
    assert capsys.readouterr().out == f"{plain}\n"


def test_a_value_that_is_cut_has_lost_its_password_before():
    for more in range(80):
        assert "secret" not in shown("x" * 60 + "postgresql://me:secret@host/db" + "x" * more)
        assert "secr" not in shown(["x" * more, "postgresql://me:secret@host/db"])
