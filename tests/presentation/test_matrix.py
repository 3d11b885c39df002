import dataclasses
import random

import pytest

from attnbench.formats.layouts.base import imported_record, imported_run, imported_time
from attnbench.presentation.blocks import blocks, case_blocks, sweep
from attnbench.presentation.columns import View
from attnbench.presentation.matrix import _out_of_memory, summary
from attnbench.record import PlannedGroup, Settings, Status
from attnbench.store.derive import derive
from made_up_run import make_case, make_group, make_lost, make_run, make_time


def run_of(*groups, **changed):
    return derive(make_run([record for group in groups for record in group], **changed))


def shapes(*rates):
    """One group a mapping of backend to TFLOP/s, each of a length of its own."""
    return [make_group(make_case(seqlen=512 * (1 + index)), rate) for index, rate in enumerate(rates)]


def marks(found, case):
    (row,) = [row for row in found.matrices[0].rows if row.name == case]
    return {name: cell.mark for name, cell in row.cells.items()}


def test_the_sentence_counts_wins_and_says_the_range_against_the_baseline():
    found = summary(
        run_of(
            *shapes(
                {"base": 100.0, "mine": 200.0, "other": 90.0},
                {"base": 100.0, "mine": 150.0, "other": 90.0},
                {"base": 100.0, "mine": 50.0, "other": 300.0},
            )
        )
    )
    assert found.sentence == "mine is fastest in 2 of 3 cases, other in 1; 0.50 to 2.00 times as fast as base"
    assert [row.name for row in found.matrices[0].rows] == ["s512", "s1024", "s1536"]
    assert found.matrices[0].backends == ["base", "mine", "other"]
    assert marks(found, "s512") == {"base": "", "mine": "*", "other": ""}


def test_forward_and_backward_together_are_not_called_a_backward():
    rates = {"base": 100.0, "mine": 200.0}
    found = summary(run_of(*(make_group(make_case(mode=mode), rates) for mode in ("fwd", "bwd", "fwd-bwd"))))
    assert [row.name for row in found.matrices[0].rows] == ["fwd", "bwd", "fwd-bwd"]
    found = summary(run_of(*(make_group(make_case(seqlen=size, mode="fwd-bwd"), rates) for size in (512, 1024))))
    assert [row.name for row in found.matrices[0].rows] == ["s512", "s1024"]
    assert found.matrices[0].title.endswith("-bf16-fwd-bwd")


def test_a_case_with_nothing_of_its_own_is_named_by_what_it_lacks():
    rates = {"base": 100.0, "mine": 200.0}
    plain, causal = (make_group(make_case(causal=causal), rates) for causal in (False, True))
    (matrix,) = summary(run_of(plain, causal)).matrices
    assert [row.name for row in matrix.rows] == ["without causal", "causal"]
    (merged,) = sweep(run_of(plain, causal))
    assert [line.cells["case"] for line in merged.lines] == ["without causal"] * 2 + ["causal"] * 2


def test_the_title_says_of_all_rows_only_what_rows_of_gaps_have_too():
    first, second = (make_group(make_case(causal=True, seqlen=n), {"base": 1.0, "mine": 2.0}) for n in (512, 1024))
    (matrix,) = summary(run_of(first, second, [make_lost(make_case(), "base", Status.OOM, "full")])).matrices
    assert [row.name for row in matrix.rows] == ["s512-causal", "s1024-causal", "s16384"]
    assert "causal" not in matrix.title


def test_a_winning_baseline_is_held_against_the_next():
    found = summary(
        run_of(*shapes({"base": 300.0, "mine": 200.0, "slow": 10.0}, {"base": 300.0, "mine": 150.0, "slow": 10.0}))
    )
    assert found.sentence == "base is fastest in 2 of 2 cases; 1.50 to 2.00 times as fast as mine"


def test_who_cannot_be_told_apart_is_marked_and_no_winner_is_claimed():
    found = summary(
        run_of(*shapes({"base": 300.0, "mine": 300.01, "slow": 10.0}, {"base": 300.0, "mine": 300.01, "slow": 10.0}))
    )
    assert found.sentence.startswith("no clear winner in any of 2 cases; ")
    signs = marks(found, "s512")
    assert signs.pop("slow") == ""
    assert sorted(signs.values()) in (["*", "="], ["*", "?"])
    assert set(found.matrices[0].marks) == {"*", *signs.values()}


def test_same_and_unclear_are_different_marks():
    lots = random.Random(3)
    steady = [[lots.gauss(center, 0.002) for _ in range(200)] for center in (1.0, 1.0)]
    wild = [lots.gauss(1.12, 0.6) for _ in range(200)]
    records = [
        dataclasses.replace(record, time=make_time(samples), speedup=None)
        for record, samples in zip(
            make_group(make_case(), {"base": 100.0, "same": 100.0, "unclear": 100.0}),
            (*steady, [abs(sample) + 0.01 for sample in wild]),
            strict=True,
        )
    ]
    row = summary(derive(make_run(records, settings=Settings(baseline="base")))).matrices[0].rows[0]
    assert row.cells["unclear"].mark == "?"
    assert sorted((row.cells["base"].mark, row.cells["same"].mark)) == ["*", "="]


def test_a_gap_says_how_it_ended_and_its_reason_stands_below():
    first, second = shapes({"base": 100.0, "mine": 200.0}, {"base": 100.0})
    lost = make_lost(make_case(seqlen=1024), "mine", Status.OOM, "needs 48 GiB")
    never = [
        make_lost(make_case(seqlen=512 * (1 + index)), "gone", Status.SKIPPED, "not installed") for index in range(2)
    ]
    found = summary(run_of(first, second, [lost], never))
    (matrix,) = found.matrices
    assert matrix.backends == ["base", "mine"]  # who has no time anywhere is no column
    assert matrix.rows[1].cells["mine"].text == "oom"
    assert {(item.backend, item.reason, item.where) for item in found.lost} == {
        ("mine", "needs 48 GiB", make_id(1024)),
        ("gone", "not installed", "all 2 cases"),
    }


def make_id(length):
    (record, *_) = make_group(make_case(seqlen=length))
    return record.case_id


def test_a_case_that_nobody_finished_is_a_row_of_gaps():
    hung = [make_lost(make_case(seqlen=64), name, Status.TIMEOUT, "hung") for name in ("base", "mine")]
    found = summary(run_of(*shapes({"base": 100.0, "mine": 200.0}), hung))
    row = found.matrices[0].rows[-1]
    assert {name: cell.text for name, cell in row.cells.items()} == {"base": "timeout", "mine": "timeout"}
    assert found.sentence == "mine is fastest; 2.00 times as fast as base"


def test_a_run_that_was_stopped_says_what_it_never_came_to():
    whole = run_of(*shapes(*[{"base": 100.0, "mine": 200.0}] * 6))
    plan = tuple(
        PlannedGroup(
            group=one.group, workload=one.workload, case=one.case, case_id=one.case_id, backends=("base", "mine")
        )
        for one in whole.records[::2]
    )
    whole = dataclasses.replace(whole, plan=plan)
    assert summary(whole).results == []
    words = "1 of 6 groups was not measured, the run was stopped before: b1-s3072-h16-d128-bf16-fwd"
    assert summary(dataclasses.replace(whole, records=whole.records[:-2])).results == [words]
    (many,) = summary(dataclasses.replace(whole, records=whole.records[:2])).results
    assert many.startswith("5 of 6 groups were not measured, the run was stopped before: b1-s1024-")
    assert many.endswith(" and 2 more")


def test_memory_that_is_short_again_and_again_is_said_with_what_to_do():
    full = [
        make_lost(make_case(seqlen=64 * number), name, Status.OOM, "out of device memory")
        for number, name in ((1, "base"), (2, "mine"))
    ]
    measured = shapes({"base": 100.0, "mine": 200.0})
    words = "2 of 4 rows ran out of device memory: a smaller --batch, --seqlen or --nheads"
    assert summary(run_of(*measured, full)).results == [words]
    assert summary(run_of(*measured, full[:1])).results == []


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"batch": 8, "cached": 4096, "num_candidates": 128, "dtype": "bf16"}, "--batch, --cached or --num-candidates"),
        (
            {"model": "cogvideox-2b", "frames": 49, "height": 480, "width": 720},
            "--frames, --height, --width or --model",
        ),
        ({"model": "dlrm-v3", "batch": 1, "cached": 0}, "--batch, --cached or --model"),
        ({"batch": 8, "embedding_dim": 262144}, "--batch or --embedding-dim"),
        ({"batch": 8, "cached": 4096, "embedding_dim": None}, "--batch or --cached"),
        ({"frames": 49}, "--frames"),
    ],
)
def test_the_sizes_named_are_those_that_the_workload_has(case, words):
    lost = dataclasses.replace(make_lost(make_case(), "mine", Status.OOM, "out of device memory"), case=case)
    (found,) = _out_of_memory([lost, lost])
    assert found == f"2 of 2 rows ran out of device memory: a smaller {words}"


def test_a_workload_without_sizes_is_told_no_flag():
    lost = dataclasses.replace(make_lost(make_case(), "mine", Status.OOM, "out of device memory"), case={"kind": "odd"})
    assert _out_of_memory([lost, lost]) == ["2 of 2 rows ran out of device memory"]


def test_another_number_is_shown_where_it_is_asked_for():
    run = run_of(*shapes({"base": 100.0, "mine": 200.0}, {"base": 100.0, "mine": 200.0}))
    (matrix,) = summary(run, View(columns=("verdict", "tflops", "median"))).matrices
    assert matrix.title.startswith("TFLOP/s · all ")
    values = [row.cells["mine"].value for row in matrix.rows]
    assert values == pytest.approx([200.0, 200.0], rel=0.01)


def test_times_are_in_the_unit_of_the_title():
    run = run_of(*shapes({"base": 100.0, "mine": 200.0}, {"base": 100.0, "mine": 200.0}))
    (matrix,) = summary(run).matrices
    unit = {"µs": 1e3, "ms": 1.0, "s": 1e-3}[matrix.title.split(" · ")[0].split()[-1]]
    for record in run.records:
        (row,) = [row for row in matrix.rows if row.case_id == record.case_id]
        assert row.cells[record.backend].value == pytest.approx(unit * record.time.median_ms)
        assert float(row.cells[record.backend].text) == pytest.approx(unit * record.time.median_ms, rel=0.01)


def test_times_taken_differently_never_share_a_matrix():
    first, second = shapes({"base": 100.0, "mine": 200.0}, {"base": 100.0, "mine": 200.0})
    second = [dataclasses.replace(record, time=dataclasses.replace(record.time, timer="events")) for record in second]
    found = summary(run_of(first, second))
    assert [(matrix.conditions.timer, len(matrix.rows)) for matrix in found.matrices] == [("cupti", 1), ("events", 1)]


def test_one_backend_alone_wins_nothing():
    assert summary(run_of(*shapes({"base": 100.0}, {"base": 100.0}))).sentence == ""


def test_a_check_says_who_was_right_where():
    records = [
        dataclasses.replace(record, time=None, speedup=None, rate=None)
        for group in shapes({"base": 100.0, "mine": 200.0}, {"base": 100.0})
        for record in group
    ]
    records.append(make_lost(make_case(seqlen=1024), "mine", Status.INCORRECT, "out: max_abs=1"))
    found = summary(make_run(records, settings=Settings(measure=False)))
    (matrix,) = found.matrices
    assert [{name: cell.text for name, cell in row.cells.items()} for row in matrix.rows] == [
        {"base": "ok", "mine": "ok"},
        {"base": "ok", "mine": "incorrect"},
    ]
    assert found.sentence == ""


def test_a_run_that_knows_no_median_has_a_matrix_all_the_same():
    run = run_of(*shapes({"a": 100.0, "b": 200.0}, {"a": 90.0, "b": 80.0}))
    records = [
        dataclasses.replace(
            item,
            speedup=None,
            time=dataclasses.replace(
                item.time, median_ms=None, mean_ms=1.0, samples_ms=(), rounds=(), at_s=(), sm_mhz=()
            ),
        )
        for item in run.records
    ]
    for view in (None, View(("tflops",))):
        [found] = summary(dataclasses.replace(run, records=tuple(records)), view).matrices
        assert found.rows


def test_a_run_of_nothing_has_nothing_to_say():
    found = summary(make_run([]))
    assert (list(found.matrices), list(found.lost), found.sentence) == ([], [], "")


def test_an_imported_run_of_means_shows_them_the_fastest_first():
    case = {"seqlen": 512}
    means = {"slow": 3.25, "quick": 1.5}
    run = imported_run(
        "seed-003",
        "plots",
        [imported_record("seed-003", case, name, imported_time(mean_ms=ms)) for name, ms in means.items()],
    )
    (block,) = blocks(run)
    assert [column.title for column in block.columns] == ["backend", "mean ms"]
    assert [(line.cells["backend"], line.cells["mean"]) for line in block.lines] == [
        ("quick *", "1.50"),
        ("slow", "3.25"),
    ]
    (matrix,) = summary(run).matrices
    assert matrix.title.startswith("mean ms")
    assert {name: (cell.text, cell.value) for name, cell in matrix.rows[0].cells.items()} == {
        "slow": ("3.25", 3.25),
        "quick": ("1.50", 1.5),
    }


def test_means_stand_beside_medians_only_where_they_are_asked_for():
    run = run_of(*shapes({"base": 100.0, "mine": 200.0}))
    usual, asked = (case_blocks(run, run.records, view=view)[0] for view in (None, View(columns=("mean",))))
    assert "mean" not in [column.key for column in usual.columns]
    assert [column.key for column in asked.columns] == ["backend", "mean"]


def test_times_on_other_inputs_never_share_a_matrix_and_each_says_its_own():
    first, second = shapes({"base": 100.0, "mine": 200.0}, {"base": 100.0, "mine": 200.0})
    second = [dataclasses.replace(record, input="outliers") for record in second]
    found = summary(run_of(first, second))
    assert [len(matrix.rows) for matrix in found.matrices] == [1, 1]
    assert ["input outliers" in matrix.conditions.words() for matrix in found.matrices] == [False, True]


def host_run(host_ms, tflops=300.0):
    """Two lengths; of the first, `mine` takes the host `host_ms` a call."""
    groups = shapes({"base": 200.0, "mine": tflops}, {"base": 200.0, "mine": tflops})

    def record(group, index):
        one = groups[group][index]
        return dataclasses.replace(
            one, time=dataclasses.replace(one.time, host_ms=None if (group, index) != (0, 1) else host_ms)
        )

    return run_of(*([record(group, index) for index in range(2)] for group in range(2)))


def test_a_host_that_is_slower_than_the_kernels_stands_behind_their_time():
    (matrix,) = summary(host_run(0.9)).matrices
    cells = [row.cells["mine"] for row in matrix.rows]
    assert matrix.title.startswith("median µs")
    assert [cell.host for cell in cells] == ["900", ""]
    assert matrix.legend == matrix.marks | {"h…": "host time of a call, longer than its kernels run"}
    (matrix,) = summary(host_run(0.9), View(("tflops",))).matrices
    assert {cell.host for row in matrix.rows for cell in row.cells.values()} == {""}
    assert matrix.legend == matrix.marks


def test_a_host_that_waits_for_a_full_queue_is_not_shown():
    (matrix,) = summary(host_run(0.9)).matrices
    median = matrix.rows[0].cells["mine"].value / 1e3
    for factor, shown in ((1.0, False), (1.04, False), (1.06, True)):
        (matrix,) = summary(host_run(factor * median)).matrices
        assert bool(matrix.rows[0].cells["mine"].host) is shown
    (matrix,) = summary(host_run(None)).matrices
    assert matrix.legend == matrix.marks


def test_every_form_of_the_matrix_shows_the_host():
    import io
    import re

    from rich.console import Console

    from attnbench.formats.exports import md
    from attnbench.report.html.content import texts_of
    from attnbench.report.matrix import print_matrix
    from attnbench.report.terminal import Terminal

    run = host_run(0.9)
    (matrix,) = summary(run).matrices
    number = matrix.rows[0].cells["mine"].text
    out = io.StringIO()
    print_matrix(matrix, Terminal(Console(file=out, width=100)))
    lines = out.getvalue().splitlines()
    row = next(line for line in lines if line.lstrip().startswith("s512"))
    assert re.search(rf"{number}\* +h900", row), row
    assert len({len(line.rstrip()) for line in lines if line.lstrip().startswith(("s512", "s1024"))}) <= 2
    assert "h… host time of a call" in lines[-1]
    first, second = texts_of(matrix)["mine"]
    assert first.endswith(" h900")
    assert "h" not in second
    assert len(first.partition(".")[2]) == len(second.partition(".")[2])
    text = md.EXPORTER.render(run).decode()
    assert f"**{number}** h900" in text
    assert "h…: host time of a call, longer than its kernels run" in text
