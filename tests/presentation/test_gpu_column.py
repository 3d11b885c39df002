"""A run over several GPUs: the GPU of each row, and the differences between GPUs."""

from __future__ import annotations

import dataclasses
import io
import re

from rich.console import Console

from attnbench.formats.exports.md import render as markdown
from attnbench.presentation.blocks import blocks, sweep
from attnbench.presentation.matrix import summary
from attnbench.record import Yardstick
from attnbench.report.html import render as html
from attnbench.report.table import render_run
from attnbench.store.environments import gpu_names
from made_up_run import H200, make_case, make_group, make_run

GPUS = ("GPU-5f3a0000-1", "GPU-5f3a1111-2")


def several(names=GPUS, times=(0.100, 0.102)):
    """Four cases, measured on two GPUs in turn; the second's matmul takes 2 % longer."""
    records = []
    for number, length in enumerate((1024, 2048, 4096, 8192)):
        place = number % 2
        beside = {"matmul": Yardstick(flops=7, bytes=9, samples_ms=(times[place],) * 3, rounds=(0, 1, 2))}
        records += [
            dataclasses.replace(record, environment=place, yardsticks=beside)
            for record in make_group(make_case(seqlen=length), {"sdpa-flash": 349.0, "sdpa-cudnn": 607.0})
        ]
    return make_run(records, environments=tuple(dataclasses.replace(H200, gpu_uuid=name) for name in names))


def test_gpus_are_called_by_as_many_letters_as_tell_them_apart():
    assert gpu_names(several()) == {GPUS[0]: "5f3a0", GPUS[1]: "5f3a1"}
    assert gpu_names(several(("GPU-aaaa1", "GPU-bbbb1"))) == {"GPU-aaaa1": "aaaa", "GPU-bbbb1": "bbbb"}
    assert gpu_names(several((GPUS[0], GPUS[0]))) == {}


def test_tables_of_times_of_several_gpus_have_a_column_that_says_which():
    run = several()
    [table] = sweep(run)
    assert [column.title for column in table.columns][:2] == ["case", "GPU"]
    assert [line.cells["gpu"] for line in table.lines] == ["5f3a0", "5f3a0", "5f3a1", "5f3a1"] * 2
    assert {block.conditions.words()[0] for block in blocks(run)} == {"GPU 5f3a0", "GPU 5f3a1"}
    [matrix] = summary(run).matrices
    assert [title for title, _ in matrix.leading] == ["case", "GPU"]
    assert [row.gpu for row in matrix.rows] == ["5f3a0", "5f3a1", "5f3a0", "5f3a1"]
    text = io.StringIO()
    render_run(run, Console(file=text, width=120))
    assert re.search(r"case +GPU +", text.getvalue())
    assert text.getvalue().count("NVIDIA H200") == 1, "two of one model are one line"
    assert "| case | GPU |" in markdown(run).decode()
    assert markdown(run).decode().count("NVIDIA H200") == 1
    shown = html(run).decode()
    assert '<th class="text">GPU</th>' in shown
    assert shown.count('<td class="text">5f3a0</td>') == 2


def test_a_run_on_one_gpu_says_nothing_of_it():
    run = several((GPUS[0], GPUS[0]))
    [table] = sweep(run)
    assert "GPU" not in [column.title for column in table.columns]
    assert [title for title, _ in summary(run).matrices[0].leading] == ["case"]
    assert not [one for one in summary(run).results if "GPUs" in one]
    assert "GPU 5f3a" not in markdown(run).decode()


def test_one_case_on_two_gpus_has_a_table_each():
    run = several()
    first = [dataclasses.replace(one, environment=1, replicate=1, group=f"{one.group}#1") for one in run.records[:2]]
    run = dataclasses.replace(run, records=(*run.records[:2], *first))
    assert [block.conditions.gpu for block in blocks(run)] == ["5f3a0", "5f3a1"]
    assert [row.gpu for row in summary(run).matrices[0].rows] == ["5f3a0", "5f3a1"]


def test_how_far_gpus_are_apart_is_what_the_yardsticks_say():
    [found] = summary(several()).results
    assert found == (
        "GPUs 2.0 % apart by the yardstick matmul: 5f3a0 100.0 µs (2), 5f3a1 102.0 µs (2); in brackets the groups "
        "that timed it"
    )
