"""`attnbench profile`: every answer without a GPU, captures read back, and captures taken by fake tools."""

from __future__ import annotations

import json
import re
from pathlib import Path

import made_up_captures as made
import pytest

from attnbench.errors import Unavailable
from attnbench.machine.device import Device
from attnbench.machine.tools import Profiler
from attnbench.profile import sources
from attnbench.profile.take import Taken
from attnbench.store.runfile import read, write
from made_up_run import make_case, make_record, make_run

TESTS = Path(__file__).parents[1]


@pytest.fixture
def card(monkeypatch, tmp_path):
    """A machine with a GPU as far as planning goes, and tools that only know their options."""
    monkeypatch.setattr(
        "attnbench.machine.devices.resolve", lambda device: Device.parse("cuda" if device == "auto" else device)
    )
    monkeypatch.setenv("PATH", f"{TESTS / 'profile' / 'bin'}:{TESTS / 'fakes' / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "calls.log"))
    for key in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(key, raising=False)
    return tmp_path


# ── without a GPU ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", ["ncu", "nsys", "ncu quick", "nsys scenarios", "ncu --device cpu"])
def test_without_a_gpu_one_line(attnbench, words):
    said = attnbench(f"profile {words}")
    assert (said.code, said.out) == (3, "")
    assert said.err.count("\n") == 1
    assert "device=cpu has no kernels to profile; a GPU; `attnbench profile torch` times the operators" in said.err
    assert [path.name for path in Path().iterdir()] == ["mine.py"]


def test_on_a_cpu_all_times_operators_and_opens_with_the_times(attnbench):
    said = attnbench(
        "profile all --device cpu --backends eager,sdpa --batch 1 --seqlen 64 --nheads 1 --launches 2 --out profiled"
    )
    assert said.code == 0, said.err
    assert "_scaled_dot_product_flash_attention_for_cpu" in said.out
    assert "operators ms" in said.out
    assert "GPU" not in said.out
    summary = Path("profiled/SUMMARY.md").read_text()
    assert summary.index("## Times") < summary.index("| sdpa") < summary.index("## Steps") < summary.index("## Kernels")
    assert "fastest" in summary[: summary.index("## Steps")]
    assert "What failed" not in summary
    assert not {"nsys_stats.txt", "ncu_memory_metrics.txt"} & {path.name for path in Path("profiled").iterdir()}


OWN = "from attnbench.backends.cp_ring import CpRing\nclass Own(CpRing):\n    name = 'own'\n"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("torch attention-cp --backends cp-ring", "cp-ring"),
        ("torch attention-cp --dry-run", "cp-one"),
        ("all attention-cp --backends cp-ring,cp-one", "cp-ring"),
        ("torch attention-cp --backends ./own.py --skip cp-*", "own"),
    ],
)
def test_kernels_of_ranks_are_where_no_profiler_looks(attnbench, words, name):
    Path("own.py").write_text(OWN)
    said = attnbench(f"profile {words} --device cpu")
    assert (said.code, said.out) == (3, "")
    assert said.err == (
        f"attnbench profile: backend={name} runs its kernels in processes of ranks, which a profiler here does not see; "
        "phases of a call are timed by `attnbench run`\n"
    )
    assert not Path("profile_results").exists()


def test_a_gpu_that_is_not_there(attnbench):
    said = attnbench("profile torch --device cuda")
    assert (said.code, said.err.count("\n")) == (3, 1)
    assert "device=cuda is not there" in said.err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("profile", "TOOL is missing; one of ncu, nsys, torch, all, or --from CAPTURE"),
        ("profile nsy", "TOOL=nsy is not known; one of all, ncu, nsys, torch; did you mean nsys?"),
        ("profile ncu nosuite", "nosuite"),
        ("profile ncu --set ful", "--set=ful is not known; one of basic, full, roofline; did you mean full?"),
        ("profile ncu --clock-control boost", "--clock-control=boost is not known; one of base, none"),
        ("profile ncu --cache-control some", "--cache-control=some is not known; one of all, none"),
        ("profile ncu --table seed-3", "--table=seed-3 is not known; "),
        ("profile ncu --kernel (", "--kernel=( is no regular expression"),
        ("profile ncu --launches 0", "--launches=0 cannot be used; a whole number, at least 1"),
        ("profile ncu --warmup -1", "--warmup=-1 cannot be used; a whole number, at least 0"),
        ("profile ncu --timeout never", "--timeout=never cannot be used; a number above 0"),
        ("profile ncu --seqlen 0", "seqlen"),
        ("profile ncu --csv - --json -", "--json=- wants stdout, as --csv does; one of them"),
        ("profile ncu --categories nowhere.toml", "file=nowhere.toml is not there; a TOML file"),
        ("profile ncu --csv .", "path=. cannot be written"),
        ("profile --from nowhere.sqlite", "--from=nowhere.sqlite is not there"),
        ("profile --from mine.py", "--from=mine.py is none of the known formats"),
        ("profile ncu quick --from x.sqlite", "SUITE=quick is not launched where --from reads a capture"),
    ],
)
def test_a_mistake_is_one_line(attnbench, words, answer):
    said = attnbench(words)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert answer in said.err


def test_where_nsys_is_missing_torch_takes_its_place_and_that_is_said(attnbench, card, monkeypatch):
    trace = TESTS / "profile/captures/torch-2.11-sdpa-flash.trace.json"

    def probe(tool, device):
        if tool == "nsys":
            raise Unavailable("profile nsys: nsys is not on the PATH; install Nsight Systems; see `attnbench doctor`")
        return Profiler(tool, "2.11")

    def take(tool, program, job, folder, options, rules):
        assert (tool, program.name, job.marks, options.file) == ("torch", "torch", "torch", "profile_sdpa-flash")
        return Taken(sources.read(trace, rules)[0], None)

    monkeypatch.setattr("attnbench.profile.take.probe", probe)
    monkeypatch.setattr("attnbench.profile.take.take", take)
    said = attnbench("profile nsys --backends sdpa-flash --seqlen 512")
    assert said.code == 0, said.err
    assert "nsys is not on the PATH; install Nsight Systems" in said.err
    assert "torch.profiler takes its place, as in `attnbench profile torch`: the same tables" in said.err
    for title in (
        "kernels of sdpa-flash (torch)",
        "time by category",
        "ranges of sdpa-flash",
        "CUDA API of sdpa-flash",
    ):
        assert title in said.out
    monkeypatch.setattr("attnbench.profile.take.probe", lambda tool, device: probe("nsys", device))
    said = attnbench("profile ncu --backends sdpa-flash --seqlen 512")  # counters have nothing in their place
    assert (said.code, said.out) == (3, "")


# ── captures taken earlier ─────────────────────────────────────────────────────────────────────────


def test_seed_003s_table_of_several_captures(attnbench):
    for name in ("profile_fa", "profile_sage2"):
        made.nsys_sqlite(Path(f"{name}.sqlite"))
    said = attnbench("profile --from profile_fa.sqlite --from profile_sage2.sqlite --table seed-003")
    assert said.code == 0
    rows = [line.split() for line in said.out.splitlines() if line]
    assert ["Metrics", "FA2", "(baseline)", "Sage2"] in rows
    assert ["Attn", "(%)", "60.0%", "60.0%"] in rows
    assert ["direct_copy_kernel_cuda", "(times)", "2", "2"] in rows


def test_captures_are_read_without_torch(attnbench, no_torch):
    made.nsys_sqlite(Path("x.sqlite"))
    Path("y.csv").write_text(made.ncu_raw())
    made.write_trace(Path("z.json"))
    said = attnbench("profile --from x.sqlite --from y.csv --from z.json")
    assert (said.code, said.err) == (0, "")
    assert "counters (ncu)" in said.out


def test_captures_of_one_name_are_numbered(attnbench):
    made.nsys_sqlite(Path("x.sqlite"))
    said = attnbench("profile --from x.sqlite --from x.sqlite --table categories")
    assert "x-2 ms" in said.out


def test_everything_of_a_capture(attnbench):
    made.nsys_sqlite(Path("x.sqlite"))
    said = attnbench("profile nsys --from x.sqlite")
    for title in ("kernels of x (nsys)", "time by category", "copies of x", "ranges of x", "time of the CPU, not"):
        assert title in said.out


def test_data_to_stdout_moves_the_tables(attnbench):
    made.nsys_sqlite(Path("x.sqlite"))
    said = attnbench("profile --from x.sqlite --json -")
    assert json.loads(said.out)["captures"][0]["name"] == "x"
    assert "kernels of x" in said.err
    Path("x.json").write_text(said.out)
    again = attnbench("profile --from x.json --csv -")
    assert again.out.splitlines()[0].startswith("tool,capture,backend,case,range,category,kernel,calls,total_ms")
    assert len(again.out.splitlines()) == 5


def test_kernels_that_are_asked_for(attnbench):
    made.nsys_sqlite(Path("x.sqlite"))
    said = attnbench(["profile", "--from", "x.sqlite", "--kernel", "flash|direct_copy", "--csv", "-"])
    assert "CUDAFunctor_add" not in said.out
    said = attnbench("profile --from x.sqlite --kernel nothing")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "--kernel=nothing leaves no kernel of x.sqlite; among flash_fwd_kernel" in said.err
    said = attnbench(["profile", "--from", "x.sqlite", "--range", made.RANGE, "--csv", "-"])
    assert len(said.out.splitlines()) == 4  # a range inside it is in it
    said = attnbench(["profile", "--from", "x.sqlite", "--range", "warm", "--csv", "-"])
    assert len(said.out.splitlines()) == 2


def test_kernels_that_only_one_capture_has(attnbench):
    made.nsys_sqlite(Path("x.sqlite"))
    Path("y.csv").write_text(made.ncu_raw())
    said = attnbench("profile --from x.sqlite --from y.csv --kernel CUDAFunctor_add")
    assert said.code == 0
    assert "kernels of x (nsys)" in said.out
    assert "--kernel=CUDAFunctor_add leaves no kernel of y.csv; among flash_fwd_kernel" in said.err


def test_a_capture_of_another_tool(attnbench):
    made.nsys_sqlite(Path("x.sqlite"))
    said = attnbench("profile ncu --from x.sqlite")
    assert (said.code, said.out) == (2, "")
    assert "--from=x.sqlite is a capture of nsys; `attnbench profile nsys`, or no tool" in said.err


def test_own_categories(attnbench):
    made.nsys_sqlite(Path("x.sqlite"))
    Path("c.toml").write_text("[[rule]]\ncategory = 'casts'\nmatch = 'direct_copy'\n")
    said = attnbench("profile --from x.sqlite --categories c.toml --table categories")
    assert "casts" in said.out


def test_counters_go_into_a_run(attnbench):
    case = make_case(batch=2, seqlen=1024, seqlen_k=1024, nheads=8, nheads_kv=8, headdim=64, headdim_v=64, dtype="fp16")
    before = make_run([make_record(case, "sdpa-flash"), make_record(case, "sdpa-cudnn", tflops=300.0)])
    assert before.records[0].case_id == made.CASE
    write(before, "run.json")
    Path("x.csv").write_text(made.ncu_raw())
    said = attnbench("profile --from x.csv --into run.json")
    assert "counters of 1 record" in said.err
    flash, cudnn = read("run.json").records
    assert flash.counters["registers"] == 168
    assert flash.counters["instructions_per_cycle"] is None
    assert cudnn.counters == {}
    assert flash.time == read("run.json").records[0].time
    made.nsys_sqlite(Path("x.sqlite"))
    said = attnbench("profile --from x.sqlite --into run.json")
    assert (said.code, said.err.count("\n")) == (2, 1)


# ── captures taken by tools that only know their options ───────────────────────────────────────────


def test_ncu_captures_each_backend_into_a_fresh_folder(attnbench, card):
    for folder in ("profile_results", "profile_results-2"):
        said = attnbench("profile ncu --backends sdpa-flash,sdpa-efficient,flash-attn-2 --kernel flash")
        assert said.code == 0, said.err
        assert f"written: {folder}" in said.out
        assert "not captured: flash-attn-2: module=flash_attn.flash_attn_interface is not installed" in said.err
        names = {path.name for path in Path(folder).iterdir()}
        assert {
            "profile_sdpa-flash.ncu-rep",
            "profile_sdpa-flash.csv",
            "profile_sdpa-efficient.ncu-rep",
            "kernels.csv",
            "captures.json",
        } <= names
    assert "counters (ncu)" in said.out
    assert "FLOP/byte" in said.out
    assert "TheoreticalOccupancy" in said.out
    again = attnbench("profile --from profile_results/captures.json --table counters")
    assert "sdpa-efficient" in again.out


def test_a_run_for_the_counters_is_looked_at_before_anything_is_launched(attnbench, card):
    Path("cut.json").write_text('{"schema": 1')
    for name in ("nowhere.json", "cut.json"):
        said = attnbench(f"profile ncu --backends sdpa-flash --into {name}")
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert name in said.err
    assert not Path("profile_results").exists()


def test_what_a_killed_ncu_left_is_shown_with_a_word(attnbench, card, monkeypatch):
    monkeypatch.setenv("FAKE_NCU", "killed")
    said = attnbench("profile ncu --backends sdpa-flash")
    assert said.code == 0
    assert "ncu: was killed by SIGKILL" in said.out


def test_several_cases_have_files_of_their_own(attnbench, card):
    said = attnbench("profile nsys --backends sdpa-flash --seqlen 128,256")
    assert said.code == 0, said.err
    names = sorted(path.name for path in Path("profile_results").glob("*.nsys-rep"))
    assert names == [f"profile_sdpa-flash_b2-s{length}-h8-d64-fp16-fwd.nsys-rep" for length in (128, 256)]


def test_no_permission_for_counters(attnbench, card, monkeypatch):
    monkeypatch.setenv("FAKE_NCU", "denied")
    said = attnbench("profile ncu --backends sdpa-flash")
    assert said.code == 3
    assert said.err.splitlines()[-1].startswith(
        "attnbench profile ncu: no capture; sdpa-flash: ncu: this user may not "
        "read the GPU's counters (ERR_NVGPUCTRPERM); run it as root"
    )
    assert said.err.rstrip().endswith("profile_results has what ncu printed")


def test_nothing_is_installed(attnbench, card):
    said = attnbench("profile ncu --backends flash-attn-2")
    assert (said.code, said.err.count("\n")) == (3, 1)
    assert "nothing can be launched; flash-attn-2: module=flash_attn.flash_attn_interface is not installed" in said.err
    assert not Path("profile_results").exists()


def test_ctrl_c_keeps_what_was_taken(attnbench, card, monkeypatch):
    from attnbench.profile import take

    real, seen = take.run, []

    def interrupted(argv, **options):
        seen.append(argv)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(argv, **options)

    monkeypatch.setattr(take, "run", interrupted)
    said = attnbench("profile ncu --backends sdpa-flash,sdpa-efficient")
    assert said.code == 130
    kept = json.loads(Path("profile_results/captures.json").read_text())
    assert [one["name"] for one in kept["captures"]] == ["sdpa-flash"]


def test_a_dry_run_shows_the_command_lines_and_starts_nothing(attnbench, card):
    said = attnbench("profile all --dry-run --seqlen 2048")
    assert said.code == 0
    assert "attnbench run minimal --seqlen 2048 --no-save" in said.out
    assert "--seqlen 2048" in next(line for line in said.out.splitlines() if line.startswith("attnbench compare"))
    assert "nsys profile --trace=cuda,nvtx" in said.out
    assert "ncu --profile-from-start off --nvtx --set full" in said.out
    assert "--clock-control none" in said.out
    assert not (card / "calls.log").exists()
    assert not Path("profile_results").exists()


def test_the_environment_variables_of_seed_004(attnbench, card, monkeypatch):
    monkeypatch.setenv("BATCH", "4")
    said = attnbench("profile all --dry-run")
    assert "attnbench run minimal --batch 4 --no-save" in said.out
    assert "attnbench compare --batch 4 --seqlen 1024" in said.out


@pytest.mark.parametrize(
    ("words", "ranges"),
    [
        ("ncu hstu-serving", ["embedding", "projection", "attention"]),
        ("ncu hstu-serving --range head", ["head"]),
        ("ncu hstu-serving --kernel hstu", []),
        ("nsys hstu-serving", []),
    ],
)
def test_a_ranking_step_is_profiled_at_one_case_and_by_three_operators(attnbench, card, words, ranges):
    said = attnbench(f"profile {words} --dry-run --backends serving-paged")
    assert said.code == 0
    launched = [line for line in said.out.splitlines() if line.startswith("serving-paged on ")]
    assert [line.split()[2] for line in launched] == ["bench-b8-t1024-c4096-n256-gpu-hit-p64-bf16:"]
    assert re.findall("--nvtx-include ([a-z]+)/", said.out) == ranges


@pytest.mark.parametrize("words", ["ncu hstu-serving --backends serving-paged", "ncu --range attention"])
def test_the_work_of_a_case_is_not_divided_by_the_time_of_a_range(attnbench, card, words):
    said = attnbench(f"profile {words}")
    assert "counters (ncu)" in said.out, said.err
    assert "FLOP/byte" not in said.out


def test_captures_of_a_step_under_the_names_of_seed_002(attnbench, card):
    said = attnbench("profile ncu hstu-serving --layout seed-002")
    assert said.code == 0, said.err
    assert "counters (ncu)" in said.out
    assert "FLOP/byte" not in said.out, "the work of a whole step over the time of one operator"
    stem = "benchmark_bs8_nc1024"
    captures = sorted(path.name for path in Path("profile_results/profiles-cu").glob("*.ncu-rep"))
    assert captures == [f"{stem}_{name}.ncu-rep" for name in ("embedding", "hstu_fwd", "tc")]
    logs = sorted(path.name for path in Path("profile_results/pcu-logs").iterdir())
    assert logs == [f"{stem}_{name}.log" for name in ("embedding", "hstu_fwd", "tc")]
    assert not list(Path("profile_results/profiles-cu").glob("*.log"))
    calls = (card / "calls.log").read_text()
    assert re.findall(r'"--nvtx-include": "([a-z]+)/"', calls) == ["embedding", "projection", "attention"]
    assert calls.count('"--set": "roofline"') == 3
    said = attnbench("profile nsys hstu-serving --layout seed-002 --batch 1 --num-candidates 128")
    assert said.code == 0, said.err
    assert Path("profile_results-2/profiles/benchmark_bs1_nc128.nsys-rep").is_file()
    assert Path("profile_results-2/p-logs/benchmark_bs1_nc128.log").is_file()
    said = attnbench("profile ncu hstu-serving --layout seed-002 --dry-run --backends serving-paged[graph]")
    assert said.out.count("serving-paged[graph] on bench-b8-t1024") == 3
    assert f"profile_results/profiles-cu/{stem}_tc" in said.out
    assert "--set basic" in attnbench("profile ncu hstu-serving --layout seed-002 --dry-run --set basic").out


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("torch hstu-serving --layout seed-002", "--layout=seed-002 has no names for captures of torch; nsys or ncu"),
        ("ncu --layout seed-002", "--layout=seed-002 is of one step of hstu-serving, not of 1 of attention;"),
        ("ncu hstu-serving --batch 1,8 --layout seed-002", "not of 2 of hstu-serving; `attnbench profile ncu hstu-"),
        ("ncu hstu-serving --layout seed-002 --range head", "--range=head does not go with --layout seed-002"),
        ("ncu hstu-serving --layout seed-02", "--layout=seed-02 is not known; one of seed-002"),
        ("--from x.sqlite --layout seed-002", "--layout=seed-002 names captures that are taken; without --from"),
        ("all hstu-serving --layout seed-002", "--layout=seed-002 has no names for captures of all; nsys or ncu"),
    ],
)
def test_a_layout_that_names_nothing_is_refused(attnbench, card, words, wrong):
    said = attnbench(f"profile {words}")
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert wrong in said.err
    assert not Path("profile_results").exists()
