import dataclasses
import io
import re

import pytest
from rich.console import Console

from attnbench.presentation.columns import View
from attnbench.presentation.details import _phases
from attnbench.record import Environment, Settings, Status
from attnbench.report.table import render_run
from attnbench.report.terminal import decimal_aligned, marked
from attnbench.store.derive import derive
from made_up_run import TFLOPS, make_case, make_group, make_lost, make_record, make_run, make_time


def printed(run, width=140, encoding="utf-8", view=None, **how):
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding, newline="\n")
    console = Console(file=stream, width=width, legacy_windows=False, **how)
    render_run(derive(run), console, view)
    stream.flush()
    return buffer.getvalue().decode(encoding)


def line_of(text, start):
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line.split()


def test_a_block_says_who_is_how_fast_and_who_is_lost():
    text = printed(make_run())
    lines = text.splitlines()
    assert lines[0] == "NVIDIA H200 · torch 2.11.0+cu130 · triton 3.6.0 · CUDA 13.0 · driver 580.95"
    assert lines[2] == "b1-s16384-h16-d128-bf16-fwd   timer cupti · cold L2 · burst · SM 1950-1980 MHz"
    assert lines[3].split("  ")[0] == "backend"
    order = [line.split()[0] for line in lines[4:9]]
    assert order == ["flash-attn-3", "sdpa-cudnn", "flex", "sdpa-flash", "sdpa-efficient"]
    run = derive(make_run())
    (best,) = [record for record in run.records if record.backend == "flash-attn-3"]
    cells = line_of(text, "flash-attn-3")
    assert cells[1] == "*"
    assert float(cells[2]) == pytest.approx(best.time.median_ms, rel=1e-3)
    assert float(cells[4].rstrip("x")) == pytest.approx(best.speedup.ratio, rel=1e-3)
    assert cells[6] == "faster"
    assert float(cells[7]) == pytest.approx(best.rate.tflops, rel=1e-3)
    assert cells[-4:] == ["4.1e-04", "26", "60", "21.0"]
    assert "baseline" in line_of(text, "sdpa-flash")
    assert " ".join(line_of(text, "oom")) == "oom eager needs 48.0 GiB, 21.3 GiB free; seqlen=8192 would fit"
    assert "skipped    flash-attn-2  module=flash_attn is not installed;" in text


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_no_line_is_wider_than_the_page_and_the_essence_stays(width):
    text = printed(make_run(), width=width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("median ms", "±0.006", "vs sdpa-flash", "TFLOP/s", "faster"):
        assert word in text
    hint = [line for line in text.splitlines() if line.startswith("width ")]
    assert ("samples" in text.split("width ")[0]) == (width >= 140)
    assert len(hint) == (width < 200)
    if hint:
        assert "a wider terminal or --columns all shows them" in " ".join(text.split())


def test_all_columns_are_there_where_they_are_asked_for_however_narrow():
    text = printed(make_run(), width=60, view=View(columns=("all",)))
    assert max(map(len, text.splitlines())) <= 60
    for title in ("median ms", "vs sdpa-flash", "GB/s", "host µs", "set-up ms"):
        assert text.count(title) == 1
    assert text.count("backend  ") == 4
    assert not [line for line in text.splitlines() if line.startswith("width ")]


def test_piped_text_has_no_codes_and_a_terminal_has():
    assert "\x1b" not in printed(make_run())
    assert "\x1b[" in printed(make_run(), force_terminal=True, color_system="standard")


def test_an_old_terminal_gets_letters_it_can_show():
    text = printed(make_run(make_group(make_case(seqlen=128))), encoding="ascii")
    assert "median us" in text
    assert "+-" in text
    assert max(map(len, printed(make_run(), width=30, encoding="ascii").splitlines())) <= 30


def test_markup_in_names_is_text():
    run = make_run([make_record(make_case(), "mine[red]x[/red]", tflops=100.0),
                    make_lost(make_case(), "b", Status.FAILED, "RuntimeError: [bold]no[/bold]")])  # fmt: skip
    text = printed(run)
    assert "mine[red]x[/red]" in text
    assert "RuntimeError: [bold]no[/bold]" in text


def test_decimal_points_stand_in_one_column():
    assert decimal_aligned(["12.568", "3.14", "168", "", "0.5x"]) == ["12.568", "3.14 ", "168    ", "", "0.5x "]
    assert decimal_aligned(["3.0 to 13", "11 to 49", "±2.5"]) == ["3.0 to 13", "11 to 49  ", "±2.5      "]
    assert marked(["9.5", "10", ""], ["*", "", ""]) == ["9.5*", "10   ", ""]
    assert marked(["9.5", "10"], ["", ""]) == ["9.5", "10  "]


def test_decimal_points_stand_in_one_column_on_the_page_too():
    """rich takes the blanks off a text that it sets to the right."""
    records = [
        make_record(make_case(seqlen=length), name, tflops=rate, noise=noise)
        for length, noises in ((4096, (0.05, 0.0002)), (8192, (0.0002, 0.05)))
        for name, rate, noise in zip("ab", (100.0, 150.0), noises, strict=True)
    ]
    first, second, matrix = printed(make_run(records)).split("\n\n")[1:]
    for table in (first, second, matrix):
        rows = [line for line in table.splitlines() if re.match(r"(a|b|s\d+) ", line)]
        numbers = [re.search(r"\d+\.(\d+)", line[8:]) for line in rows]
        assert len(rows) == 2
        assert len({len(number[1]) for number in numbers}) == 2, "of the same digits they stand in line by themselves"
        assert len({number.start(1) for number in numbers}) == 1


def test_a_mark_takes_no_number_out_of_its_column():
    shapes = [({"a": 100.0, "b": 150.0}, 4096), ({"a": 150.0, "b": 100.0}, 8192)]
    records = [record for rates, length in shapes for record in make_group(make_case(seqlen=length), rates)]
    matrix = printed(make_run(records)).split("\n\n")[-1]
    first, second = [line for line in matrix.splitlines() if re.match(r"s\d+ ", line)]
    assert first.endswith("*")
    assert "*" in second
    assert [at for at, letter in enumerate(first) if letter == "."] == [
        at for at, letter in enumerate(second) if letter == "."
    ]


# ── notes ──────────────────────────────────────────────────────────────────────────────────────────


def noted(records, **changed):
    text = " ".join(printed(make_run(records, **changed), width=400).split())
    return [part.strip() for part in text.split(" reading ")[0].split(" note ")[1:]]


def test_a_clear_and_steady_run_has_no_notes():
    assert noted(make_group(make_case())) == []


def test_a_winner_within_the_interval_is_not_called_one():
    (tie,) = noted(make_group(make_case(), {"a": 100.0, "b": 300.0, "c": 300.05}))
    assert tie.startswith("no clear winner: ")
    assert {"b", "c"} <= set(tie.replace(",", "").split())
    assert "a" not in tie.removeprefix("no clear winner: ").split()


def test_noise_above_the_target_is_said_worst_first():
    notes = noted(make_group(make_case(), {"a": 100.0, "b": 300.0}, noise=0.05))
    (noise,) = [note for note in notes if note.startswith("noisy")]
    assert noise.endswith("(wanted ±1 %)")
    figures = [float(word.lstrip("±")) for word in noise.split() if word.startswith("±")][:-1]
    assert figures == sorted(figures, reverse=True)
    assert noted(make_group(make_case(), {"a": 100.0, "b": 300.0}, noise=0.05), settings=Settings(rel_ci=0.5)) == []


def test_a_spent_budget_is_said_and_reading_help_stands_below():
    slow = tuple(1500.0 + index for index in range(60))
    records = [dataclasses.replace(item, time=dataclasses.replace(item.time, stopped_by="max-seconds", sm_mhz=slow))
               for item in make_group(make_case())]  # fmt: skip
    assert noted(records) == ["stopped by --max-seconds: more time would narrow the intervals"]
    help_below = printed(make_run(records)).split("narrow the intervals")[1]
    assert "reading  the SM clock fell to 1500 of 1980 MHz: times carry that, speed-ups do not" in help_below


def test_what_a_backend_left_behind_is_said():
    records = [make_record(make_case(), "a", tflops=100.0, notes=("a global was put back",))]
    assert noted(records) == ["a: a global was put back"]


def test_a_note_of_the_configuration_that_the_name_has_is_left_out():
    config = "m128n64w8s2-tma"
    rows = {
        f"a[{config}]": (f"forward {config}", f"backward {config}"),
        "a": ("forward m64n64w4s3",),
        "b": (f"forward {config}",),
        f"c[{config}]": (f"forward {config}, few queries",),
        "d[]": ("forward ",),
        "e[fp8]": ("not fp8",),
    }
    records = [make_record(make_case(), name, tflops=100.0, notes=notes) for name, notes in rows.items()]
    said = [note for note in noted(records) if ": " in note and note.partition(": ")[0] in rows]
    assert sorted(said) == [
        "a: forward m64n64w4s3",
        f"b: forward {config}",
        f"c[{config}]: forward {config}, few queries",
        "d[]: forward",
        "e[fp8]: not fp8",
    ]


def test_a_note_of_every_row_names_none():
    records = [make_record(make_case(), name, tflops=100.0, notes=("checked in part",)) for name in "abc"]
    for rows, said in (
        (records, "all"),
        (records[:2], "a, b"),
        ([*records, make_record(make_case(), "d", tflops=1.0)], "a, b, c"),
    ):
        (note,) = [note for note in noted(rows) if note.endswith(": checked in part")]
        who = note.partition(":")[0]
        assert who == said if said == "all" else sorted(who.split(", ")) == said.split(", ")


def test_notes_that_differ_in_a_count_are_one_note():
    late = [f"the host was late in {count} of 12 samples: forward m{count}n64" for count in (2, 5)]
    records = [
        make_record(make_case(), name, tflops=100.0, notes=(note,)) for name, note in zip("ab", late, strict=True)
    ]
    assert {f"{name}: {note}" for name, note in zip("ab", late, strict=True)} <= set(noted(records))
    late = [note.partition(": ")[0] for note in late]
    records = [
        make_record(make_case(), name, tflops=100.0, notes=(note,)) for name, note in zip("ab", late, strict=True)
    ]
    (note,) = [note for note in noted(records) if "late" in note]
    assert re.fullmatch("(a, b|b, a): the host was late in 2 to 5 of 12 samples", note)


# ── what may not be mixed ──────────────────────────────────────────────────────────────────────────


def test_timers_are_never_in_one_table():
    first, second, third = make_group(make_case(), {"a": 100.0, "b": 200.0, "c": 300.0})
    third = dataclasses.replace(third, time=dataclasses.replace(third.time, timer="reported"), speedup=None)
    text = printed(make_run([first, second, third], settings=Settings(baseline="a")))
    cupti, reported = text.split("timer reported")
    assert "c " not in "".join(line[:2] for line in cupti.splitlines())
    assert [line.split()[0] for line in reported.splitlines()[2:3]] == ["c"]
    assert "result  no clear winner" not in text
    assert "result  b is fastest" in text or "result  a is fastest" in text
    assert "x" not in line_of(text, "c ")[3]


def test_all_timers_stand_side_by_side_and_phases_below():
    (record,) = make_group(make_case(), {"a": 100.0})
    times = {name: make_time([factor * sample for sample in record.time.samples_ms], timer=name)
             for name, factor in (("cupti", 1.0), ("events", 1.5))}  # fmt: skip
    record = dataclasses.replace(record, timers=times, phases={"quantise": make_time([0.25] * 9)})
    text = printed(make_run([record]))
    (heading,) = [line for line in text.splitlines() if line.startswith("by timer, ms")]
    assert heading.split()[3:] == ["cupti", "95", "%", "events", "95", "%"]
    cells = line_of(text[text.index(heading) :].split("\n\n")[0], "a ")
    assert float(cells[3]) == pytest.approx(1.5 * float(cells[1]), rel=1e-3)
    assert "a        quantise      250.0  ±0.0" in text
    assert "-fwd · phases   timer cupti" in text


def test_phases_of_another_timer_are_not_said_to_be_of_the_rows():
    (record,) = make_group(make_case(), {"a": 100.0})
    record = dataclasses.replace(record, phases={"quantise": make_time([0.25] * 9, timer="wall")})
    titles = [line for line in printed(make_run([record])).splitlines() if " timer " in line]
    assert [("phases" in line, line.split(" timer ")[1].split()[0]) for line in titles] == [
        (False, "cupti"),
        (True, "wall"),
    ]


def test_a_phase_not_known_to_within_itself_shows_both_ends():
    (record,) = make_group(make_case(), {"a": 100.0})
    wild = make_time([0.2] * 9, ci_low_ms=0.1, ci_high_ms=30.0)
    record = dataclasses.replace(record, phases={"quantise": wild})
    (table,) = _phases(make_run([record]), "case", [record])
    assert table.lines[0].cells["median margin"] == "100 to 30000"


def test_a_cpu_run_names_the_cpu_and_claims_no_clock():
    cpu = Environment(os="Linux", python="3.11", torch="2.13.0+cpu", cpu="AMD EPYC 9454P", cores=2)
    time = {"timer": "wall", "l2": "warm", "regime": "cpu", "sm_mhz": ()}
    record = make_record(make_case(), "eager", tflops=0.2, time=make_time([1.0, 1.1, 0.9], **time), power_w=None)
    text = printed(make_run([record], environments=(cpu,)))
    assert text.startswith("AMD EPYC 9454P · torch 2.13.0+cpu\n\nb1-s16384-h16-d128-bf16-fwd   timer wall\n")


def test_gaps_between_kernels_are_shown_where_there_are_any():
    (record,) = make_group(make_case(), {"a": 100.0})
    median = record.time.median_ms
    half = dataclasses.replace(record, time=dataclasses.replace(record.time, busy_ms=median / 2))
    assert "busy ms" in printed(make_run([half]), width=200)
    whole = dataclasses.replace(record, time=dataclasses.replace(record.time, busy_ms=0.99 * median))
    assert "busy ms" not in printed(make_run([whole]), width=200)


# ── many cases ─────────────────────────────────────────────────────────────────────────────────────


def many(count, lost=True):
    records = []
    for index in range(count):
        case = make_case(seqlen=512 * (1 + index), batch=2)
        records += make_group(case, {name: TFLOPS[name] for name in ("sdpa-flash", "flash-attn-3")})
        if lost:
            records.append(make_lost(case, "xformers", Status.SKIPPED, "xformers: module=xformers is not installed"))
    return records


def test_the_same_loss_in_every_case_is_said_once_where_it_is_met_and_once_at_the_end():
    text = printed(make_run(many(3)))
    assert text.count("xformers") == 4
    assert text.count("skipped  xformers  module=xformers is not installed") == 2
    assert "skipped  xformers  module=xformers is not installed (all 3 cases)" in text
    assert text.count("timer cupti") == 4


def test_what_was_lost_for_one_reason_shares_a_line():
    names = ("flash-attn-2", "flash-attn-3", "flash-attn-4", "flashinfer", "sage1", "sage2")
    lost = [make_lost(make_case(), name, Status.SKIPPED, "needs a GPU") for name in names]
    lost.append(make_lost(make_case(), "mine", Status.FAILED, "boom"))
    wide = printed(make_run([*make_group(make_case()), *lost]), width=200)
    assert f"skipped  {', '.join(names)}  needs a GPU" in wide
    assert "failed   mine " in wide
    lines = printed(make_run([*make_group(make_case()), *lost]), width=80).splitlines()
    (first,) = [place for place, line in enumerate(lines) if "needs a GPU" in line]
    assert lines[first].startswith("skipped  flash-attn-2, flash-attn-3, ")
    assert lines[first + 1].split() == ["flash-attn-4,", "flashinfer,", "sage1,"]
    assert max(map(len, lines)) <= 80


LONG = {
    "base": 500.0,
    "ours[m128n128w8s3-tma-ws-joint-lazy-pieces]": 600.0,
    "ours[m128n128w8s3-tma-pp-joint-pieces]": 550.0,
}


@pytest.mark.parametrize("width", [75, 90, 160])
def test_backends_whose_columns_do_not_fit_have_a_row_each_if_that_fits(width):
    records = [one for seqlen in (512, 4096) for one in make_group(make_case(seqlen=seqlen, batch=2), LONG)]
    text = printed(make_run(records), width=width).partition("all b2-h16-d128-bf16-fwd")[2]
    lines = [line.rstrip() for line in text.splitlines()[1:] if line and not line.startswith("timer")]
    assert max(map(len, lines)) <= width
    if width == 160:
        assert lines[0].split() == ["case", *LONG]
        assert [line.split()[0] for line in lines[1:3]] == ["s512", "s4096"]
        return
    assert lines[0].split() == ["backend", "s512", "s4096"]
    rows = [line.split() for line in lines[1:4]]
    assert [row[0] for row in rows] == list(LONG)
    assert ["*" in row[1] for row in rows] == ["*" in row[-1] for row in rows] == [False, True, False]
    assert len({line.rindex(".") for line in lines[1:4]}) == 1
    times = {(one.case["seqlen"], one.backend): 1e3 * one.time.median_ms for one in records}
    for row in rows:
        assert float(row[1].strip("*")) == pytest.approx(times[512, row[0]], rel=0.01)
        assert float(row[-1].strip("*")) == pytest.approx(times[4096, row[0]], rel=0.01)


def test_backends_that_fit_neither_way_are_in_several_parts():
    records = [one for number in range(1, 9) for one in make_group(make_case(seqlen=512 * number, batch=2), LONG)]
    text = printed(make_run(records), width=100).partition("all b2-h16-d128-bf16-fwd")[2]
    assert [line.split()[0] for line in text.splitlines()].count("case") == 2
    assert max(map(len, text.splitlines()[1:])) <= 100


def test_of_more_than_forty_cases_the_notes_stand_below_the_matrix():
    text = printed(make_run(many(41), suite="overhead"))
    tables, matrix = text.split("all b2-h16-d128-bf16-fwd")
    assert tables.count("timer cupti") == 41
    assert "reading" not in tables
    assert "reading  41 of 41 cases" in matrix
    rows = [line for line in matrix.splitlines() if line.startswith("s") and line[1].isdigit()]
    assert len(rows) == 41
    assert "(all 41 cases)" in matrix
    assert max(map(len, printed(make_run(many(41)), width=80).splitlines())) <= 80


def test_a_run_of_nothing_prints_its_machine():
    assert printed(make_run([])).splitlines() == [
        "NVIDIA H200 · torch 2.11.0+cu130 · triton 3.6.0 · CUDA 13.0 · driver 580.95"
    ]


def test_a_run_with_a_seed_layout_has_our_tables_too():
    lost = make_run([make_lost(make_case(), "a", Status.OOM, "too large")], layout="seed-001")
    assert "oom  a  too large" in printed(lost)
    assert "median ms" in printed(make_run(layout="seed-004"))


def test_what_steers_a_terminal_is_shown_as_an_escape():
    run = make_run([make_lost(make_case(), "a", Status.FAILED, "\x1b[2Jgone\x07")])
    assert r"\u001b[2Jgone\u0007" in printed(run)


def test_a_configuration_is_named_once_whether_or_not_the_backend_carries_it():
    plain = make_record(make_case(), "flex", tflops=100.0, config="bm128")
    lost = dataclasses.replace(make_lost(make_case(), "flex[bm64]", Status.FAILED, "no"), config="bm64")
    text = printed(make_run([plain, lost]))
    assert line_of(text, "flex[bm128]")
    assert " ".join(line_of(text, "failed")) == "failed flex[bm64] no"
    assert "][" not in text
