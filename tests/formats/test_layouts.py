import dataclasses
import json

import pytest

from attnbench.errors import RunFileError, UsageError
from attnbench.formats.layouts import layout_names, load_layout, recognise
from attnbench.record import Memory, Settings, Status, Work
from attnbench.store import runfile
from made_up_run import make_case, make_group, make_lost, make_record, make_run, make_time

SEED_001, SEED_004 = load_layout("seed-001"), load_layout("seed-004")
HEADER = "Kernel Name,d_head,seq_len,Mean,Median,Min,Max,StdDev,Relative Performance,Attn TFLOP/s"


def timed(case, backend, samples, **changed):
    """A record with these samples and 8e9 FLOPs, so that 1 ms is 8 TFLOP/s."""
    work = Work(flops=8_000_000_000, bytes=10)
    return make_record(case, backend, tflops=1.0, time=make_time(samples), work=work, **changed)


def test_layouts_are_found_by_their_files():
    assert layout_names() == ["seed-000", "seed-001", "seed-002", "seed-003", "seed-004"]
    with pytest.raises(UsageError, match=r"layout: name=seed-009 is not known; one of seed-000, seed-001, seed-002"):
        load_layout("seed-009")


# ── seed-001 ───────────────────────────────────────────────────────────────────────────────────────


def sweep_of(backends, **changed):
    small, large = make_case(seqlen=512, headdim=64), make_case(seqlen=8192, headdim=64)
    return make_run([timed(case, name, [time * factor for time in times], **changed)
                     for factor, case in ((1, small), (10, large)) for name, times in backends.items()])  # fmt: skip


def test_seed_001_to_the_letter(tmp_path):
    run = sweep_of({"mine": [1.0, 2.0, 6.0], "flash-attn-2": [2.0, 2.0, 2.0], "flash-attn-3": [1.0]})
    (path,) = SEED_001.write(run, tmp_path / "sweep.csv")
    assert path == tmp_path / "sweep.csv"
    assert path.read_text().splitlines() == [
        HEADER,
        "V3,64,512,1.000000,1.000000,1.000000,1.000000,0.000000,200.0000,8.0000",
        "Reference,64,512,2.000000,2.000000,2.000000,2.000000,0.000000,100.0000,4.0000",
        "mine,64,512,3.000000,2.000000,1.000000,6.000000,2.645751,66.6667,2.6667",
        "V3,64,8192,10.000000,10.000000,10.000000,10.000000,0.000000,200.0000,0.8000",
        "Reference,64,8192,20.000000,20.000000,20.000000,20.000000,0.000000,100.0000,0.4000",
        "mine,64,8192,30.000000,20.000000,10.000000,60.000000,26.457513,66.6667,0.2667",
    ]
    assert SEED_001.notes(run) == ("seed-001: V3 is flash-attn-3",)


def test_seed_001_says_when_the_reference_is_torch_and_when_there_is_none():
    run = sweep_of({"sdpa-flash": [2.0], "flash-attn-2[short]": [1.0]})
    assert "\nReference,64,512,2.0" in SEED_001.console(run)
    assert "Reference is torch's own SDPA flash: flash-attn-2 was not measured" in SEED_001.notes(run)[0]
    run = sweep_of({"eager": [2.0]})
    assert SEED_001.console(run).splitlines()[1] == (
        "eager,64,512,2.000000,2.000000,2.000000,2.000000,0.000000,,4.0000"
    )
    assert SEED_001.notes(run) == ("seed-001: no Reference row: neither flash-attn-2 nor sdpa-flash was measured",)


def test_seed_001_makes_a_file_a_sweep_and_names_who_is_lost(tmp_path):
    cases = [make_case(seqlen=512, batch=16, dtype=dtype) for dtype in ("fp16", "bf16")]
    cases += [make_case(seqlen=8192, batch=8, dtype=dtype) for dtype in ("fp16", "bf16")]
    lost = [make_lost(case, "xformers", Status.SKIPPED, "xformers: not installed") for case in cases]
    run = make_run([timed(case, "flash-attn-2", [1.0, 2.0]) for case in cases] + lost)
    paths = SEED_001.write(run, tmp_path / "sweep.csv")
    assert [path.name for path in paths] == ["sweep.dtype-fp16.csv", "sweep.dtype-bf16.csv"]
    assert [line.split(",")[2] for line in paths[0].read_text().splitlines()[1:]] == ["512", "8192"]
    assert SEED_001.notes(run) == ("seed-001: not in the table: xformers (all 4 cases): skipped: not installed",)


def test_seed_001_is_read_back(tmp_path):
    run = sweep_of({"mine": [0.0085, 0.0091, 0.0083], "flash-attn-2": [0.012] * 7, "=evil": [0.5, 0.6]})
    (path,) = SEED_001.write(run, tmp_path / "sweep.csv")
    again = recognise(path).read(path)
    assert SEED_001.console(again) == path.read_text()
    record = again.records[0]
    assert (record.backend, record.case) == ("mine", {"headdim": 64, "seqlen": 512})
    assert record.time.median_ms == 0.0085
    assert record.speedup.ratio == pytest.approx(1.3900, abs=1e-4)
    assert record.time.timer == "imported"
    assert (record.time.num_samples, record.time.p95_ms, record.time.l2, record.work) == (None, None, None, None)
    assert runfile.loads(runfile.dumps(again)) == again


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,64,512,1,1,1,1,0,100", r"sweep\.csv:2: fields=9 are not a row; 10 fields"),
        ("a,64,512,1,1,1,1,0,100,8,9", r"fields=\d+ are not a row"),
        ("a,64,512,fast,1,1,1,0,100,8", r"sweep\.csv:2: Mean=fast is not a number; a finite number or nothing"),
        ("a,64,512,nan,1,1,1,0,100,8", r"Mean=nan is not a number"),
        ("a,64,512,,1,1,1,0,100,8", r"Mean= is not a time; milliseconds above 0"),
        ("a,64,512,1e308,1,1,1,0,100,8", r"sweep\.csv: row 1\.time\.mean_ms=1e\+308 is not a time; 0 to 1e\+12 milli"),
        ("a,64,512,1,1,-1,1,0,100,8", r"row 1\.time\.min_ms=-1\.0 is not a time"),
        ("a,64,512,1,1,1,1,0,100,1e300", r"row 1\.rate\.tflops=1e\+300 is no quantity"),
        ("a,64.5,512,1,1,1,1,0,100,8", r"d_head=64\.5 is not a size; a whole number from 1 to 2147483648"),
        ("a,64,,1,1,1,1,0,100,8", r"seq_len= is not a size"),
        (f"a,64,{'9' * 40},1,1,1,1,0,100,8", r"seq_len=9+ is not a size"),
        ("x" * 200_000, r"sweep\.csv: line=2 cannot be read \(field larger than field limit .*\); 10 fields"),
    ],
)
def test_seed_001_names_the_field_that_is_wrong(tmp_path, line, message):
    path = tmp_path / "sweep.csv"
    path.write_text(f"{HEADER}\n{line}\n")
    with pytest.raises(RunFileError, match=message):
        SEED_001.read(path)


@pytest.mark.parametrize("seqlen", [None, "512", [512]])
def test_seed_001_takes_sizes_that_are_numbers(seqlen):
    record = make_record(make_case(), "sdpa-flash")
    run = make_run([dataclasses.replace(record, case=record.case | {"seqlen": seqlen})])
    with pytest.raises(UsageError, match="seed-001: workload=attention has no headdim and seqlen; a run of attention"):
        SEED_001.console(run)


def test_seed_001_takes_what_has_a_time_and_a_shape():
    with pytest.raises(UsageError, match=r"seed-001: records=0 have a time; a run with at least one timed record"):
        SEED_001.console(make_run([make_lost(make_case(), "a", Status.OOM, "x")]))
    with pytest.raises(UsageError, match=r"seed-001: workload=attention has no headdim and seqlen; a run of attention"):
        SEED_001.console(make_run([dataclasses.replace(timed(make_case(), "a", [1.0]), case={"rows": 3})]))


# ── seed-004 ───────────────────────────────────────────────────────────────────────────────────────


def test_minimal_prints_and_stores_what_people_grep(tmp_path):
    run = make_run([timed(make_case(), "sdpa-flash", [2.345, 2.567], memory=Memory(peak_allocated_mb=512.0))])
    assert SEED_004.console(run) == (
        "Forward Pass Results:\n"
        "  Time (min):      2.345 ms\n"
        "  Time (avg):      2.456 ms\n"
        "  TFLOPs/s (peak): 3.41 TFLOPs/s\n"
        "  TFLOPs/s (avg):  3.26 TFLOPs/s\n"
    )
    assert [path.name for path in SEED_004.write(run, tmp_path / "out")] == ["results.json", "baseline_benchmark.txt"]
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert stored == {"time_ms": pytest.approx(2.456), "tflops": pytest.approx(8 / 2.456), "memory_gb": 0.5}
    assert SEED_004.write(run, tmp_path / "r.json") == [tmp_path / "r.json"]
    assert json.loads((tmp_path / "r.json").read_text()) == stored
    assert "torch's own SDPA flash" in SEED_004.notes(run)[0]


def test_short_times_keep_four_digits_and_unknown_memory_is_null(tmp_path):
    run = make_run([timed(make_case(), "flash-attn-2", [0.013517], memory=None)])
    assert "Time (avg):      0.01352 ms" in SEED_004.console(run)
    SEED_004.write(run, tmp_path / "results.json")
    assert json.loads((tmp_path / "results.json").read_text())["memory_gb"] is None
    assert SEED_004.notes(run) == ()


def comparison():
    case = make_case()
    times = {
        "flash-attn-2": (2.345, 512.1),
        "eager": (15.678, 2048.3),
        "sdpa": (3.456, 768.2),
        "xformers-cutlass": (2.890, 624.5),
    }
    return [
        timed(case, name, [time], memory=Memory(peak_allocated_mb=memory)) for name, (time, memory) in times.items()
    ]


TABLE = """\
Implementation            Time (ms)       Memory (MB)     Speedup
--------------------------------------------------------------------------------
Flash Attention              2.345          512.1         1.00x
PyTorch Standard            15.678         2048.3         0.15x
PyTorch SDPA                 3.456          768.2         0.68x
xFormers                     2.890          624.5         0.81x

🏆 Fastest: Flash Attention (2.345 ms)
💾 Lowest Memory: Flash Attention (512.1 MB)
"""


def test_compare_prints_the_table_of_the_seed(tmp_path):
    run = make_run(comparison())
    assert SEED_004.console(run) == TABLE
    assert SEED_004.notes(run) == ("seed-004: xFormers is xformers-cutlass",)
    assert SEED_004.write(run, tmp_path) == [tmp_path / "comparison_results.txt"]
    assert SEED_004.write(run, tmp_path / "mine.txt") == [tmp_path / "mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == TABLE


def test_of_two_that_the_seed_calls_one_name_the_first_has_it():
    both = [*comparison(), timed(make_case(), "xformers-flash", [2.0], memory=None)]
    lines = SEED_004.console(make_run(both)).splitlines()
    assert [line.split("  ")[0] for line in lines[5:7]] == ["xformers-cutlass", "xFormers"]


def test_compare_never_drops_a_backend_silently():
    case = make_case()
    run = make_run(
        [timed(case, "eager", [1.5], memory=None), make_lost(case, "flash-attn-2", Status.SKIPPED, "missing")]
    )
    lines = SEED_004.console(run).splitlines()
    assert lines[2] == "PyTorch Standard             1.500              -             -"
    assert lines[-1] == "flash-attn-2: skipped: missing"
    assert not any("Lowest Memory" in line for line in lines)
    assert SEED_004.notes(run) == ("seed-004: no Flash Attention: neither flash-attn-2 nor sdpa-flash was measured",)


@pytest.mark.parametrize("layout", ["seed-000", "seed-001", "seed-002", "seed-004"])
def test_a_run_of_check_has_no_times_to_write(tmp_path, layout):
    checked = [dataclasses.replace(one, time=None) for one in make_group(make_case(), {"sdpa": 500.0, "eager": 100.0})]
    run = make_run(checked, settings=Settings(measure=False))
    with pytest.raises(UsageError, match=rf"{layout}: records=0 have a time"):
        load_layout(layout).write(run, tmp_path / "out")


def test_several_cases_are_named_and_do_not_fit_results_json(tmp_path):
    run = make_run([timed(make_case(batch=batch), "flash-attn-2", [1.0]) for batch in (1, 2)])
    text = SEED_004.console(run)
    assert text.count("Forward Pass Results:") == 2
    assert text.startswith("b1-s16384-h16-d128-bf16-fwd\nForward")
    with pytest.raises(UsageError, match=r"seed-004: records=2 do not fit results\.json; one case and one backend"):
        SEED_004.write(run, tmp_path / "results.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd-bwd"])
def test_seed_004_blocks_are_read_back(tmp_path, mode):
    run = make_run([timed(make_case(mode=mode), "flash-attn-2", [2.345, 2.567])])
    (path,) = SEED_004.write(run, tmp_path / "baseline_benchmark.txt")
    again = recognise(path).read(path)
    assert SEED_004.console(again) == path.read_text()
    assert again.records[0].case == {"mode": mode}
    assert (again.records[0].time.median_ms, again.records[0].memory) == (None, None)
    assert runfile.loads(runfile.dumps(again)) == again


def test_seed_004_tables_and_results_are_read_back(tmp_path):
    SEED_004.write(make_run(comparison()), tmp_path / "comparison_results.txt")
    SEED_004.write(make_run([timed(make_case(), "sdpa-flash", [2.0])]), tmp_path / "results.json")
    again = recognise(tmp_path).read(tmp_path)
    assert [record.backend for record in again.records] == [
        "Flash Attention", "Flash Attention", "PyTorch Standard", "PyTorch SDPA", "xFormers"]  # fmt: skip
    assert again.records[2].speedup.ratio == 0.15
    assert again.records[2].memory.peak_allocated_mb == 2048.3
    table = dataclasses.replace(again, records=again.records[1:])
    assert SEED_004.console(table) == TABLE
    single = recognise(tmp_path / "results.json").read(tmp_path / "results.json")
    SEED_004.write(single, tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == {"time_ms": 2.0, "tflops": 4.0, "memory_gb": 0.25}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("results.json", '{"time_ms": "2", "tflops": 1, "memory_gb": 1}', r"time_ms=2 is not a number; a number or"),
        ("results.json", '{"time_ms": null, "tflops": 1, "memory_gb": 1}', r"time_ms=None is not a time"),
        ("results.json", '{"time_ms": 1, "tflops": NaN, "memory_gb": 1}', r"tflops=nan is not a number"),
        ("a.txt", "Sideways Pass Results:\n  Time (avg):      1.0 ms\n", r"heading=Sideways is not known; one of"),
        ("a.txt", "Forward Pass Results:\n", r"a\.txt:1: Time \(avg\)=None is not a time; milliseconds above 0"),
        ("a.txt", TABLE.replace("2.345 ", "quick "), r"a\.txt:3: Time \(ms\)=quick is not a number"),
        ("a.txt", TABLE.splitlines()[0] + "\n---\nalone\n", r"a\.txt: line=3 is not a row; name, time, memory"),
        ("a.txt", "nothing of ours", r"holds no figures of seed-004; results\.json, a console block or the table"),
    ],
)  # fmt: skip
def test_seed_004_names_what_is_wrong(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(RunFileError, match=message):
        SEED_004.read(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"\xff\xfe\x00", "is not text in UTF-8"),
        (HEADER.encode("utf-16"), "is not text in UTF-8"),
        (b"", "is of no known layout"),
        (b"a,b\n1,2\n", "is of no known layout"),
        (b"[1]", "is of no known layout"),
    ],
)
def test_a_file_of_no_layout_is_refused(tmp_path, content, wrong):
    path = tmp_path / "what.bin"
    path.write_bytes(content)
    words = rf"{wrong}; a file of layout seed-000, seed-001, seed-002, seed-003, seed-004; name it with"
    with pytest.raises(RunFileError, match=words):
        recognise(path)
    with pytest.raises(RunFileError, match=r"path=.*gone is not there; a file of a seed's layout"):
        recognise(tmp_path / "gone")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sweep.csv", f"{HEADER}\na,64,512,1,1,1,1,0,100,8\n"),
        ("results.json", '{"time_ms": 1.0, "tflops": 1, "memory_gb": 1}'),
        ("a.txt", TABLE),
    ],
)
def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path, name, text):
    plain, marked = tmp_path / name, tmp_path / f"marked-{name}"
    plain.write_text(text, encoding="utf-8")
    marked.write_text(text, encoding="utf-8-sig")
    assert recognise(marked) is recognise(plain)
    first, second = (recognise(path).read(path).records for path in (plain, marked))
    assert first == second


def test_imports_of_our_own_exports_keep_their_groups():
    run = make_run(make_group(make_case()))
    assert len(SEED_001.console(run).splitlines()) == 1 + len(run.records)
