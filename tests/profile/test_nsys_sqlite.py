"""nsys's SQLite export, synthetic by its schema: ranges, projection, copies, idle, and invalid files."""

import sqlite3

import made_up_captures as made
import pytest

from attnbench.errors import RunFileError
from attnbench.profile import nsys_sqlite
from attnbench.profile.timeline import Event, Instance, Timeline


@pytest.fixture
def found(tmp_path, rules):
    return nsys_sqlite.parse(made.nsys_sqlite(tmp_path / "x.sqlite"), name="x", rules=rules)


def test_kernels_by_range_with_whole_names(found):
    rows = {(row.range, row.name): row for row in found.kernels}
    flash = next(row for row in found.kernels if row.backend and row.range == "warm")
    assert flash.within == (made.RANGE,)
    assert flash.backend == "sdpa-flash"  # a range of a library inside ours does not hide whose launch it is
    assert rows[made.RANGE, made.FLASH].calls == 1
    assert rows[made.RANGE, made.COPY].total_ms == pytest.approx(0.002)
    assert rows[None, made.ADD].total_ms == pytest.approx(0.002)
    assert (flash.case, flash.grid, flash.block) == (made.CASE, (8, 2, 8), (128, 1, 1))
    assert rows[made.RANGE, made.COPY].grid is None  # its two launches differ
    assert [row.category for row in found.kernels if row.name == made.COPY] == ["copy"]


def test_a_range_of_one_name_in_two_backends_is_two(rules):
    names = ("a/b1-s64-h1-d16-fp16-fwd", "b/b1-s64-h1-d16-fp16-fwd", "library")
    line = Timeline(
        [Event("kernel", "k", 0.0, 1e6, (0, 2)), Event("kernel", "k", 2e6, 5e6, (1, 3))],
        [Instance(name, 0.0, 9.0, 1) for name in (*names, "library")],
    )
    assert [(row.backend, row.range, row.total_ms) for row in line.kernels(rules)] == [
        ("b", "library", 3.0),
        ("a", "library", 1.0),
    ]


def test_a_launch_from_autograds_thread_belongs_to_the_range_that_waits(found):
    copies = [row for row in found.kernels if row.name == made.COPY]
    assert [(row.range, row.calls) for row in copies] == [(made.RANGE, 2)]


def test_ranges_are_projected(found):
    ours = next(row for row in found.ranges if row.name == made.RANGE)
    # 10000-14000 and 15000-19000 of the GPU; 2 times 1000 of the CPU
    assert (ours.calls, ours.gpu_ms, ours.busy_ms, ours.host_ms) == pytest.approx((2, 0.008, 0.008, 0.002))
    warm = next(row for row in found.ranges if row.name == "warm")
    assert warm.gpu_ms == pytest.approx(0.003)
    assert "a mark" not in [row.name for row in found.ranges]


def test_idle_is_the_window_without_what_overlaps(found):
    # busy 10000-14000, 15000-20000 (kernels, then memcpy and memset overlapping), 20000-22000
    assert (found.window_ms, found.busy_ms, found.idle_ms) == pytest.approx((0.012, 0.011, 0.001))


def test_copies_and_api_stand_apart(found):
    assert [(row.operation, row.total_mb) for row in found.copies] == [
        ("[CUDA memcpy Host-to-Device]", 2.0),
        ("[CUDA memset]", 0.004096),
    ]
    assert [(row.name, row.calls) for row in found.api] == [("cudaMemcpyAsync", 2), ("cudaLaunchKernel", 5)]
    assert found.device == "NVIDIA H200"


def test_without_ranges_or_api_the_kernels_are_still_there(tmp_path, rules):
    found = nsys_sqlite.parse(made.nsys_sqlite(tmp_path / "x.sqlite", tables=("kernel",)), name="x", rules=rules)
    assert found.kernel_ms == pytest.approx(0.01)
    assert {row.range for row in found.kernels} == {None}
    assert (found.ranges, found.copies, found.api) == ((), (), ())


def test_whole_graphs_are_said(tmp_path, rules):
    found = nsys_sqlite.parse(made.nsys_sqlite(tmp_path / "x.sqlite", graphs=2), name="x", rules=rules)
    assert any("--cuda-graph-trace=node" in note for note in found.notes)
    with pytest.raises(RunFileError, match=r"whole CUDA graphs only.*--cuda-graph-trace=node"):
        nsys_sqlite.parse(made.nsys_sqlite(tmp_path / "y.sqlite", graphs=2, tables=()), name="y", rules=rules)


def test_an_export_without_a_gpu(tmp_path, rules):
    with pytest.raises(RunFileError, match="holds no kernel and no copy of a GPU"):
        nsys_sqlite.parse(made.nsys_sqlite(tmp_path / "x.sqlite", tables=("runtime", "nvtx")), name="x", rules=rules)


@pytest.mark.parametrize("spoil", ["cut", "foreign", "other columns", "other types", "locked"])
def test_a_file_that_cannot_be_read(tmp_path, rules, spoil, monkeypatch):
    path = made.nsys_sqlite(tmp_path / "x.sqlite")
    holder = None
    if spoil == "cut":
        path.write_bytes(path.read_bytes()[:6000])
    elif spoil == "foreign":
        path.unlink()
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE runs (id INTEGER)")
        other.close()
    elif spoil == "other columns":
        with sqlite3.connect(path) as other:
            other.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN gridX TO grid_x")
        other.close()
    elif spoil == "other types":
        with sqlite3.connect(path) as other:
            other.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = 'soon', globalTid = 'main'")
        other.close()
    else:
        holder = sqlite3.connect(path)
        holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RunFileError, match=r"nsys: capture=x\.sqlite") as refused:
        nsys_sqlite.parse(path, name="x", rules=rules)
    assert "nsys export --type sqlite" in str(refused.value)
    if holder is not None:
        holder.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("TARGET_INFO_GPU SET name = CAST(name AS BLOB)", "b'NVIDIA H200' is not a str"),
        ("StringIds SET value = CAST(value AS BLOB) WHERE id = 2", "is not a str"),
        ("CUPTI_ACTIVITY_KIND_KERNEL SET end = 1.7e308", "1.7e+308 is not a int"),
        ("CUPTI_ACTIVITY_KIND_KERNEL SET gridX = NULL WHERE rowid = 5", "None is not a int"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = 0.5", "0.5 is not a int"),
        ("NVTX_EVENTS SET text = x'ff', textId = NULL", "is not a str | None"),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path, rules, change, said):
    path = made.nsys_sqlite(tmp_path / "x.sqlite")
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE {change}")
    database.close()
    with pytest.raises(RunFileError) as refused:
        nsys_sqlite.parse(path, name="x", rules=rules)
    assert said in str(refused.value)


def test_what_a_row_need_not_say_may_be_missing(tmp_path, rules):
    path = made.nsys_sqlite(tmp_path / "x.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = NULL, shortName = NULL")
        database.execute("UPDATE TARGET_INFO_GPU SET name = NULL")
    database.close()
    found = nsys_sqlite.parse(path, name="x", rules=rules)
    assert found.device is None
    assert found.kernel_ms == pytest.approx(0.01)


def test_the_file_is_not_touched(tmp_path, rules):
    path = made.nsys_sqlite(tmp_path / "x.sqlite")
    before = path.read_bytes()
    nsys_sqlite.parse(path, name="x", rules=rules)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["x.sqlite"]
