import csv
import dataclasses
import io
import json
import re
import subprocess
import sys
import zipfile

import openpyxl
import pytest

from attnbench.errors import Unavailable, UsageError
from attnbench.formats import exports
from attnbench.formats.exports import xlsx
from attnbench.formats.exports.base import harmless
from attnbench.record import Error, PlannedGroup, Status
from attnbench.store import rows, runfile
from attnbench.store.derive import derive
from attnbench.store.frame import to_pandas
from made_up_run import make_case, make_group, make_lost, make_record, make_run

RUN = derive(make_run())


def table_of(run=RUN):
    return list(csv.DictReader(io.StringIO(exports.load_exporter("csv").render(run).decode())))


def test_exporters_are_found_by_their_files():
    assert exports.exporter_names() == ["csv", "json", "md", "xlsx"]
    with pytest.raises(UsageError, match=r"export: format=cvs is not known; one of csv, json, md, xlsx; did you"):
        exports.load_exporter("cvs")


def test_csv_has_a_row_a_record_and_units_in_the_names():
    table = table_of()
    assert [row["backend"] for row in table] == [record.backend for record in RUN.records]
    first, record = table[0], RUN.records[0]
    assert float(first["time.median_ms"]) == pytest.approx(record.time.median_ms, rel=1e-8)
    assert int(first["work.flops"]) == record.work.flops
    assert first["case.causal"] == "false"
    assert first["case.window"] == ""
    assert first["kernels"] == "sdpa-flash_fwd_sm90"
    assert first["environment.gpu"] == "NVIDIA H200"
    assert float(first["time.sm_mhz_median"]) == 1965.0
    assert float(first["power_w.median"]) == pytest.approx((310.5 + 655.25) / 2)
    assert float(table[3]["speedup.ratio"]) == pytest.approx(RUN.records[3].speedup.ratio, rel=1e-8)
    assert table[5]["status"] == "skipped"
    assert table[5]["time.median_ms"] == ""


def test_a_row_says_its_inputs_and_one_of_an_older_file_those_of_its_run():
    settings = dataclasses.replace(RUN.settings, input="video")
    own = dataclasses.replace(RUN.records[0], input="outliers")
    run = dataclasses.replace(RUN, settings=settings, records=(own, RUN.records[1]))
    for plan, inputs in ((RUN.plan or (planned(own),), ["outliers", "video"]), ((), ["outliers", None])):
        assert [row["input"] for row in rows.rows(dataclasses.replace(run, plan=plan))] == inputs


def planned(record):
    return PlannedGroup(
        group=record.group,
        workload=record.workload,
        case=record.case,
        case_id=record.case_id,
        backends=(record.backend,),
    )


def test_columns_are_those_of_any_run_in_one_order():
    other = make_run([make_lost({"causal": True, "batch": 1, "seqlen": 3, "nheads": 1, "headdim": 7, "dtype": "fp32",
                                 "mode": "bwd"}, "a", Status.CRASHED, "segmentation fault")])  # fmt: skip
    here, there = rows.columns(RUN), rows.columns(other)
    shared = [name for name in here if name in there and not name.startswith("case.")]
    assert shared == [name for name in there if name in here and not name.startswith("case.")]
    assert {name.split(".")[0] for name in set(here) - set(there)} == {"case", "errors", "ceilings"}
    assert len(here) == len(set(here))


def test_no_series_and_nothing_that_is_no_number_reaches_a_table():
    nan = Error(max_abs=float("nan"), rel_l1=None, rmse=None, cosine=None, budget=0.1, ok=False)
    lost = dataclasses.replace(make_lost(make_case(), "a", Status.INCORRECT, "NaN"), errors={"out": nan})
    run = make_run([lost, make_record(make_case(), "b", tflops=100.0)])
    assert rows.rows(run)[0]["errors.out.max_abs"] is None
    assert not any("samples_ms" in name or "at_s" in name for name in rows.columns(run))


EVIL = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\n=1", "＝1+1"]


@pytest.mark.parametrize("text", EVIL)
def test_a_text_never_becomes_a_formula(text):
    run = make_run([make_lost(make_case(), text, Status.FAILED, text)])
    (row,) = table_of(run)
    assert row["backend"] == row["reason"] == f"'{text}"
    sheet = openpyxl.load_workbook(io.BytesIO(exports.load_exporter("xlsx").render(run)))["results"]
    found = {cell.value: sheet.cell(2, place).data_type for place, cell in enumerate(sheet[1], 1)}
    assert found["backend"] == found["reason"] == "s"


def test_a_negative_number_stays_a_number():
    assert harmless("1-2") == "1-2"
    run = make_run([dataclasses.replace(make_lost(make_case(), "a", Status.OOM, "x"), counters={"drift": -0.5})])
    assert table_of(run)[0]["counters.drift"] == "-0.5"


def several_cases():
    records = []
    for length in (512, 1024):
        case = make_case(seqlen=length)
        records += make_group(case, {"sdpa-flash": 300.0, "flash-attn-3": 600.0})
    return derive(
        make_run(
            [
                *records,
                make_lost(make_case(seqlen=1024), "flex", Status.OOM, "needs 48 GiB"),
                *make_group(make_case(seqlen=512), {"flex": 100.0}),
            ]
        )
    )


def test_xlsx_begins_with_the_matrix_in_numbers_and_the_sentence():
    book = openpyxl.load_workbook(io.BytesIO(xlsx.render(several_cases())))
    assert book.sheetnames == ["matrix", "results"]
    sheet = book["matrix"]
    lines = [[cell.value for cell in row] for row in sheet.iter_rows()]
    assert lines[1][0].startswith("NVIDIA H200 · torch ")
    assert lines[2][0].startswith("flash-attn-3 is fastest in 2 of 2 cases; ")
    head = next(index for index, line in enumerate(lines) if line[0] == "case")
    assert lines[head][1:4] == ["sdpa-flash", "flash-attn-3", "flex"]
    names = [lines[head + 1][0], lines[head + 2][0]]
    assert names == ["s512", "s1024"]
    assert all(isinstance(value, float) for value in lines[head + 1][1:4])
    assert lines[head + 2][3] == "oom"
    texts = [sheet.cell(head + 1, column) for column in (2, 3, 4)] + [sheet.cell(head + 3, 4)]
    assert all(cell.alignment.horizontal == "right" for cell in texts), "above and among the numbers"
    best = sheet.cell(head + 2, 3)
    assert (best.value, best.font.bold) == (min(lines[head + 1][1:4]), True)
    assert not sheet.cell(head + 2, 2).font.bold
    assert re.fullmatch(r"0(\.0+)?", best.number_format)
    assert ["oom", "flex", "needs 48 GiB"] in [line[:3] for line in lines]
    assert sheet.column_dimensions["C"].width >= len("flash-attn-3")


def test_the_raw_sheet_has_dates_formats_widths_and_filters():
    run = several_cases()
    sheet = openpyxl.load_workbook(io.BytesIO(xlsx.render(run)))["results"]
    names = {cell.value: cell.column for cell in sheet[1]}
    started = sheet.cell(2, names["run.started"])
    assert started.is_date
    assert started.value.isoformat() + "Z" == run.started
    assert sheet.cell(2, names["time.median_ms"]).number_format == "0.0000"
    assert sheet.cell(2, names["errors.out.max_abs"]).number_format == "0.0E+00"
    assert sheet.cell(2, names["work.flops"]).number_format == "#,##0"
    assert sheet.auto_filter.ref == f"A1:{sheet.cell(1, len(names)).column_letter}{1 + len(run.records)}"
    assert sheet.freeze_panes == "A2"
    widths = {letter: dimension.width for letter, dimension in sheet.column_dimensions.items()}
    assert widths[sheet.cell(1, names["run.started"]).column_letter] > 20


def test_no_number_of_the_raw_sheet_is_shown_as_0():
    slow = make_record(make_case(), "slow", tflops=0.00097)
    quick = make_record(make_case(), "quick", tflops=300.0)
    run = derive(make_run([dataclasses.replace(slow, time=dataclasses.replace(slow.time, host_ms=2e-5)), quick]))
    sheet = openpyxl.load_workbook(io.BytesIO(xlsx.render(run)))["results"]
    names = {cell.value: cell.column for cell in sheet[1]}
    shown = [
        [sheet.cell(row, names[name]).number_format for row in (2, 3)]
        for name in ("rate.tflops", "time.host_ms", "time.median_ms")
    ]
    assert shown[0] == ["0.00E+00", "#,##0.00"]
    assert shown[1][0] == "0.00E+00"
    assert shown[2] == ["0.0000", "0.0000"]


def test_every_number_and_date_fits_in_its_column():
    """What does not fit is shown as ####."""
    cases = [make_case(seqlen=64 + 64 * place) for place in range(60)] + [make_case(seqlen=1 << 24)]
    run = derive(make_run([record for case in cases for record in make_group(case, {"a": 300.0, "b": 100.0})]))
    book = openpyxl.load_workbook(io.BytesIO(xlsx.render(run)))
    spelled = {"#,##0": ",.0f", "#,##0.00": ",.2f", "0.0E+00": ".1e", "0.00E+00": ".2e", "General": ".6g"}
    numbers = 0
    for sheet in book:
        for cell in (cell for row in sheet.iter_rows() for cell in row):
            if cell.is_date:
                needed = len("2026-11-20 12:34:56")
            elif isinstance(cell.value, int | float):
                places = len(cell.number_format.partition(".")[2])
                how = spelled.get(cell.number_format, f".{places}f")
                needed = len(
                    str(cell.value) if isinstance(cell.value, int) and how == ".6g" else format(cell.value, how)
                )
            else:
                continue
            numbers += 1
            assert needed < sheet.column_dimensions[cell.column_letter].width, (sheet.title, cell.coordinate)
    assert numbers > 1000


def test_a_start_that_is_no_date_stays_text():
    run = dataclasses.replace(several_cases(), started="yesterday")
    assert openpyxl.load_workbook(io.BytesIO(xlsx.render(run)))["results"]["C2"].value == "yesterday"
    run = dataclasses.replace(run, started="0001-01-01T00:00:00+14:00")
    assert openpyxl.load_workbook(io.BytesIO(xlsx.render(run)))["results"]["C2"].value == run.started


def test_markdown_begins_with_the_sentence_and_the_matrix():
    text = exports.load_exporter("md").render(several_cases()).decode()
    before, _ = text.split("### b1-s512", 1)
    assert "**flash-attn-3 is fastest in 2 of 2 cases; " in before
    table = [line for line in before.splitlines() if line.startswith("|")]
    assert table[0] == "| case | sdpa-flash | flash-attn-3 | flex |"
    assert re.fullmatch(r"\| s512 \| [\d.]+ h21.0 \| \*\*[\d.]+\*\* h21.0 \| [\d.]+ \|", table[2])
    assert table[3].endswith("| oom |")
    assert "- **oom** flex (s1024" in before or "- **oom** flex (b1-s1024" in before
    single = exports.load_exporter("md").render(derive(make_run(make_group(make_case())))).decode()
    assert "| case |" not in single
    assert " is fastest; " in single


def test_xlsx_has_the_sheet_results_with_the_rows_of_the_csv():
    book = openpyxl.load_workbook(io.BytesIO(exports.load_exporter("xlsx").render(RUN)))
    assert book.sheetnames[-1] == "results"
    names, *lines = book["results"].iter_rows(values_only=True)
    assert list(names) == rows.columns(RUN)
    assert len(lines) == len(RUN.records)
    first = dict(zip(names, lines[0], strict=True))
    assert first["time.median_ms"] == RUN.records[0].time.median_ms
    assert first["case.causal"] is False
    assert dict(zip(names, lines[5], strict=True))["time.median_ms"] is None


def test_xlsx_survives_what_a_terminal_says():
    reason = "\x1b[31mred\x00" + "x" * 40_000
    run = make_run([make_lost(make_case(), "#N/A", Status.FAILED, reason)])
    data = xlsx.render(run)
    assert zipfile.is_zipfile(io.BytesIO(data))
    names, line = openpyxl.load_workbook(io.BytesIO(data))["results"].iter_rows(values_only=True)
    row = dict(zip(names, line, strict=True))
    assert row["reason"].startswith("\\u001b[31mred\\u0000xxx")
    assert row["backend"] == "#N/A"


def test_xlsx_writes_what_no_double_holds_digit_for_digit():
    run = make_run([make_lost(make_case(seqlen=10**400), "a", Status.FAILED, "x")])
    names, line = openpyxl.load_workbook(io.BytesIO(xlsx.render(run)))["results"].iter_rows(values_only=True)
    assert dict(zip(names, line, strict=True))["case.seqlen"] == str(10**400)


def test_pandas_has_the_columns_of_the_csv():
    frame = to_pandas(RUN)
    assert list(frame.columns) == rows.columns(RUN)
    assert frame["time.median_ms"].tolist()[0] == RUN.records[0].time.median_ms
    assert frame["time.median_ms"].isna().sum() == 3


def test_without_pandas_the_install_line_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Unavailable, match=r"pandas is not installed; pip install 'attnbench\[pandas\]'"):
        to_pandas(RUN)


def test_json_is_the_run_file():
    assert runfile.loads(exports.load_exporter("json").render(RUN).decode()) == RUN


def test_md_is_a_table_that_no_text_breaks():
    case = make_case()
    nasty = make_record(case, "a|b", tflops=100.0, notes=("<script>alert(1)</script>",))
    text = (
        exports.load_exporter("md").render(make_run([nasty, make_lost(case, "c", Status.FAILED, "x\n| y |")])).decode()
    )
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "a\\|b" in table[2]
    assert "\\<script\\>" in text
    assert "- **failed** c: x \\| y \\|" in text


def test_md_shows_what_stands_in_the_run():
    text = exports.load_exporter("md").render(RUN).decode()
    assert "### b1-s16384-h16-d128-bf16-fwd" in text
    assert "timer cupti · cold L2 · burst · SM 1950-1980 MHz" in text
    assert f"| flash-attn-3 \\* | {RUN.records[3].time.median_ms:.3f} |" in text
    assert "- **oom** eager: needs 48.0 GiB, 21.3 GiB free; seqlen=8192 would fit" in text


def test_by_an_axis_makes_a_file_for_each_value(tmp_path):
    run = make_run([*make_group(make_case(causal=True)), *make_group(make_case(causal=False, batch=2))])
    written = exports.export(run, "csv", tmp_path / "all.v1.csv", by="causal")
    assert [path.name for path in written] == ["all.v1.causal-true.csv", "all.v1.causal-false.csv"]
    assert {row["case.batch"] for row in csv.DictReader(written[1].read_text().splitlines())} == {"2"}
    parts = exports.export(run, "json", tmp_path / "run.json", by="batch")
    assert [len(runfile.read(path).plan) for path in parts] == [1, 1]


def test_values_that_look_alike_in_a_name_get_files_of_their_own(tmp_path):
    run = make_run([item for window in ([128, 0], [128, -0.0], None, [128, 1])
                    for item in make_group(make_case(window=window), {"a": 100.0})])  # fmt: skip
    names = [path.name for path in exports.export(run, "csv", tmp_path / "x.csv", by="window")]
    assert names == ["x.window-128_0.csv", "x.window-128_0.0.csv", "x.window-none.csv", "x.window-128_1.csv"]
    run = make_run(
        [item for value in ("a/b", "a b", "..") for item in make_group(make_case(lengths=value), {"a": 1.0})]
    )
    names = [path.name for path in exports.export(run, "csv", tmp_path / "x.csv", by="lengths")]
    assert names == ["x.lengths-a_b.csv", "x.lengths-a_b.2.csv", "x.lengths-empty.csv"]


def test_an_unknown_axis_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match=r"export: by=head_dim is not known; one of batch, .*; did you mean headdim\?"):
        exports.export(RUN, "csv", tmp_path / "x.csv", by="head-dim")
    assert list(tmp_path.iterdir()) == []


def test_stdout_is_for_texts(capsys):
    assert exports.export(RUN, "csv", "-") == []
    assert capsys.readouterr().out == exports.load_exporter("csv").render(RUN).decode()
    with pytest.raises(UsageError, match=r"export: xlsx=- is a binary format; a file name"):
        exports.export(RUN, "xlsx", "-")
    with pytest.raises(UsageError, match=r"export: by=batch makes several files; a file name instead of -"):
        exports.export(RUN, "csv", "-", by="batch")


BLOCKED = """
import sys
for name in ("torch", "triton", "pandas", "openpyxl", "pynvml"):
    sys.modules[name] = None
import pkgutil, importlib
import attnbench.store, attnbench.presentation, attnbench.formats, attnbench.report
for room in (attnbench.store, attnbench.presentation, attnbench.formats, attnbench.report):
    for item in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
        importlib.import_module(item.name)
assert "rich" not in sys.modules and "numpy" not in sys.modules
from attnbench.formats import exports
from attnbench.store import runfile
run = runfile.loads(sys.stdin.read())
print(len(exports.load_exporter("csv").render(run).splitlines()))
"""


def test_stores_and_reports_work_where_nothing_can_be_measured():
    done = subprocess.run([sys.executable, "-c", BLOCKED], input=runfile.dumps(make_run()), capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert done.stdout == f"{len(RUN.records) + 1}\n"


def test_a_field_added_to_a_time_is_a_column():
    names = set(rows.columns(RUN))
    assert {f"time.{field}" for field in json.loads(runfile.dumps(RUN))["records"][0]["time"]} - names == {
        "time.samples_ms", "time.rounds", "time.at_s", "time.sm_mhz"}  # fmt: skip
