import dataclasses
import functools
import io

from rich.console import Console

from attnbench.record import Error, Status
from attnbench.report.checks import render_check
from attnbench.report.listing import render_list
from made_up_run import make_case, make_lost, make_record, make_run


def drawn(render, what, width=140):
    stream = io.StringIO()
    render(what, Console(file=stream, width=width))
    return stream.getvalue()


def error(max_abs, ok=True):
    return Error(max_abs=max_abs, rel_l1=2.2e-3, rmse=3.1e-5, cosine=0.999997, budget=1.6e-3, ok=ok)


def checked():
    case = make_case(mode="fwd-bwd")
    right = dataclasses.replace(make_record(case, "right", tflops=1.0), time=None, rate=None,
                                errors={"out": error(4.1e-4), "dq": error(2e-4)})  # fmt: skip
    nothing = Error(max_abs=None, rel_l1=None, rmse=None, cosine=None, budget=1.6e-3, ok=False)
    wrong = dataclasses.replace(make_lost(case, "wrong", Status.INCORRECT, "wrong: dq: max_abs=0.31, budget 0.0016"),
                                errors={"out": error(3e-4), "dq": error(0.31, ok=False), "dk": nothing})  # fmt: skip
    return make_run([right, wrong, make_lost(case, "gone", Status.SKIPPED, "not installed")])


def test_every_output_and_gradient_has_its_line():
    text = drawn(render_check, checked())
    lines = [line.split() for line in text.splitlines()]
    assert ["right", "out", "4.1e-04", "1.6e-03", "2.2e-03", "3.1e-05", "3.0e-06", "ok"] in lines
    assert ["dq", "2.0e-04", "1.6e-03", "2.2e-03", "3.1e-05", "3.0e-06", "ok"] in lines
    assert ["dq", "3.1e-01", "1.6e-03", "2.2e-03", "3.1e-05", "3.0e-06", "wrong"] in lines
    assert ["dk", "NaN", "1.6e-03", "NaN", "NaN", "NaN", "wrong"] in lines
    assert ["incorrect", "wrong", "dq:", "max_abs=0.31,", "budget", "0.0016"] in lines
    assert ["skipped", "gone", "not", "installed"] in lines
    assert lines[-1] == ["1", "passed,", "1", "incorrect,", "1", "skipped"]


def test_a_narrow_page_keeps_the_verdict():
    text = drawn(render_check, checked(), width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert "RMSE" not in text
    assert text.count(" ok") == 3
    assert text.count(" wrong\n") == 2


def test_bounds_of_the_relative_l1_and_the_worst_head_are_columns_where_a_backend_has_them():
    case = make_case()
    exact, coarse = error(4.1e-4), dataclasses.replace(error(3e-2), rel_l1=0.0381, head_rel_l1=0.0403)
    coarse = dataclasses.replace(coarse, rel_l1_budget=0.042, head_rel_l1_budget=0.045)
    rows = [
        dataclasses.replace(
            make_record(case, name, tflops=1.0), time=None, rate=None, input="outliers", errors={"out": one}
        )
        for name, one in (("exact", exact), ("coarse", coarse))
    ]
    lines = [line.split() for line in drawn(render_check, make_run(rows)).splitlines()]
    assert lines[0][-2:] == ["input", "outliers"]
    assert " ".join(lines[1]) == "backend output max abs budget rel L1 L1 budget worst head head budget RMSE 1 - cosine"
    assert [
        "coarse",
        "out",
        "3.0e-02",
        "1.6e-03",
        "3.8e-02",
        "4.2e-02",
        "4.0e-02",
        "4.5e-02",
        "3.1e-05",
        "3.0e-06",
        "ok",
    ] in lines
    narrow = drawn(render_check, make_run(rows), width=90)
    assert "worst head" in narrow
    assert "RMSE" not in narrow
    assert "worst head" not in drawn(render_check, make_run(rows[:1]))


def test_a_check_of_nothing_says_so():
    assert drawn(render_check, make_run([])).strip() == "nothing was checked"


ROWS = [
    {"backend": "sdpa-flash", "version": "2.11.0", "ready": True, "note": "FlashAttention 2 inside torch"},
    {"backend": "[b]mine", "version": None, "ready": False, "note": "pip install " + "very-" * 20 + "long"},
]


def test_a_list_is_a_table_with_a_wrapping_last_column():
    text = drawn(render_list, ROWS, width=80)
    lines = text.splitlines()
    assert lines[0].split() == ["backend", "version", "ready", "note"]
    assert lines[1].split() == ["sdpa-flash", "2.11.0", "yes", "FlashAttention", "2", "inside", "torch"]
    assert lines[2].startswith("[b]mine              no     pip install ")
    assert max(map(len, lines)) <= 80
    assert "".join(line[28:].strip() for line in lines[2:]).endswith("very-long")


def test_where_the_last_column_has_no_room_it_stands_below_whole():
    lines = drawn(render_list, ROWS, width=30).splitlines()
    assert lines == [
        "backend     version  ready",
        "sdpa-flash  2.11.0   yes",
        "  FlashAttention 2 inside torch",
        "[b]mine              no",
        f"  {ROWS[1]['note']}",
    ]
    few = [{"name": "a" * 20, "install": None}, {"name": "b", "install": "pip install " + "b" * 20}]
    assert drawn(render_list, few, width=30).splitlines() == ["name", "a" * 20, "b", "  pip install " + "b" * 20]


def test_a_very_narrow_list_is_stacked():
    lines = drawn(render_list, ROWS, width=20).splitlines()
    assert lines[0].strip() == "sdpa-flash"
    assert "  version 2.11.0" in lines
    assert max(map(len, lines)) <= 20


def test_short_fields_of_a_stacked_list_share_lines():
    row = {"name": "a[m64n64]", **{f"field_{number}": number for number in range(9)}, "note": "words " * 8}
    text = drawn(render_list, [row], width=50)
    assert text.splitlines()[:4] == [
        "a[m64n64]",
        "  field_0 0  field_1 1  field_2 2  field_3 3",
        "  field_4 4  field_5 5  field_6 6  field_7 7",
        "  field_8 8",
    ]
    assert text.splitlines()[4].startswith("  note  words words")


def test_an_empty_list_says_so():
    assert drawn(render_list, []).strip() == "nothing to list"


def test_a_command_is_whole_where_prose_would_be_broken():
    line = "pip install " + "b" * 40
    rows = [{"name": "a" * 20, "install": line}]
    render = functools.partial(render_list, commands=True)
    assert line not in drawn(render_list, rows, width=60)
    assert drawn(render, rows, width=60).splitlines()[-1] == f"  {line}"
    assert drawn(render, rows, width=80).splitlines()[-1].rstrip() == f"{'a' * 20}  {line}"
