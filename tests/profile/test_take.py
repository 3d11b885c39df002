"""Captures with a fake ncu and nsys that only check their options, and every way a tool can fail."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import made_up_captures as made
import pytest

from attnbench.errors import Unavailable, UsageError
from attnbench.profile import running
from attnbench.profile.folder import open_folder
from attnbench.profile.job import Job
from attnbench.profile.take import Options, commands, probe, take
from waiting import PATIENCE_S

JOB = Job(workload="attention", case={}, case_id=made.CASE, backends=("sdpa-flash",), device="cuda:0", marks="nvtx")


@pytest.fixture
def taken(fake_tools, tmp_path, rules, monkeypatch):
    folder = tmp_path / "out"
    folder.mkdir()

    def take_one(tool, mode="ok", **options):
        monkeypatch.setenv(f"FAKE_{tool.upper()}", mode)
        options.setdefault("timeout_s", PATIENCE_S)
        return take(tool, probe(tool, "cuda:0"), JOB, folder, Options(**options), rules)

    take_one.folder = folder
    return take_one


# ── ncu ────────────────────────────────────────────────────────────────────────────────────────────


def test_ncu_takes_several_ranges():
    (words,) = commands("ncu", "ncu", ["target"], Path("out"), Options(range="embedding,attention"))
    given = [after for word, after in itertools.pairwise(words) if word == "--nvtx-include"]
    assert given == ["embedding/", "attention/"]


def test_ncu_takes_and_reads(taken, fake_tools):
    found = taken("ncu", kernel="flash|fmha", range="a/b[1]").capture
    (options, target), *pages = fake_tools.calls()
    assert (options["--clock-control"], options["--pipeline-boost-state"]) == ("none", "dynamic")
    assert (options["--set"], options["--profile-from-start"], options["--nvtx"]) == ("basic", "off", True)
    assert options["--kernel-name"] == "regex:flash|fmha"
    assert options["--nvtx-include"] == "a\\/b\\[1\\]/"
    assert target[:4] == [sys.executable, "-P", "-m", "attnbench.profile.target"]
    assert [page["--page"] for page, _ in pages] == ["raw", "details"]
    assert {page["--print-units"] for page, _ in pages} == {"auto"}  # base ones have two decimals
    assert (found.tool, found.tool_version, found.name) == ("ncu", "2025.3.1.0", "sdpa-flash")
    assert {row.backend for row in found.kernels} == {"sdpa-flash"}  # the copy was in no range: it is of this process
    assert found.kernels[0].advice
    assert sorted(path.name for path in taken.folder.iterdir()) == [
        "profile_sdpa-flash.csv",
        "profile_sdpa-flash.log",
        "profile_sdpa-flash.ncu-rep",
    ]


def test_the_command_kept_with_a_capture_names_no_folder(taken):
    command = taken("ncu").capture.command
    assert command.startswith("ncu --profile-from-start off --nvtx")
    assert str(taken.folder) not in command
    assert "/" not in command.replace("a/b", "")


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("denied", "may not read the GPU's counters (ERR_NVGPUCTRPERM); run it as root"),
        ("none", "no kernel was profiled"),
        ("silent", "ended with code 0; its last line was: ==PROF== Connected to process 4711 (python3.12)"),
    ],
)
def test_ncu_fails_with_a_reason(taken, mode, words):
    found = taken("ncu", mode)
    assert found.capture is None
    assert words in found.reason
    assert "/usr/bin" not in found.reason
    assert "\n" not in found.reason


@pytest.mark.parametrize("tool", ["ncu", "nsys"])
def test_what_a_killed_tool_left_is_read_and_marked(taken, tool):
    found = taken(tool, "killed")
    if tool == "nsys":  # half a report: neither exported nor printed
        assert found.capture is None
        assert "nsys: was killed by SIGKILL" in found.reason
        assert "damaged" in found.reason
    else:
        assert any("ncu: was killed by SIGKILL" in note and "may be missing" in note for note in found.capture.notes)


def test_ncu_killed_with_half_a_report(taken, monkeypatch):
    monkeypatch.setattr("attnbench.profile.ncu_rep.page", lambda *args: '"ID","Process ID","x"\n')
    reason = taken("ncu", "killed").reason
    assert "ncu: was killed by SIGKILL" in reason
    assert "has no column Kernel Name" in reason


def test_a_time_limit_ends_what_the_tool_started(taken):
    found = taken("ncu", "hang", timeout_s=0.5)  # by itself it would end in days
    assert found.reason == "ncu: did not end within 0.5 s and was stopped; --timeout"


@pytest.mark.parametrize(
    ("mode", "control", "given_back"),
    [("hang", "base", True), ("killed", "base", True), ("hang", "none", False), ("ok", "base", False)],
)
def test_clocks_that_a_killed_ncu_holds_are_given_back(taken, fake_tools, mode, control, given_back):
    taken("ncu", mode, timeout_s=0.7 if mode == "hang" else PATIENCE_S, clock_control=control)
    assert ([{"--clock-control": "reset"}, []] in fake_tools.calls()) is given_back


def test_a_csv_that_is_cut_short_is_said(taken):
    assert "is cut short" in taken("ncu", "cut").reason


def test_an_earlier_report_is_kept_without_force(taken):
    taken("ncu")
    before = (taken.folder / "profile_sdpa-flash.ncu-rep").stat().st_mtime_ns
    taken("ncu")  # the real ncu refuses to overwrite; so does this one
    assert (taken.folder / "profile_sdpa-flash.ncu-rep").stat().st_mtime_ns == before
    assert taken("ncu", force=True).reason is None
    assert (taken.folder / "profile_sdpa-flash.ncu-rep").stat().st_mtime_ns > before


@pytest.mark.parametrize(
    ("tool", "mode"), [("ncu", "denied"), ("ncu", "silent"), ("nsys", "silent"), ("nsys", "nothing")]
)
def test_with_force_an_earlier_capture_is_never_shown_as_this_one(taken, tool, mode):
    assert taken(tool).capture is not None
    report = taken.folder / f"profile_sdpa-flash.{tool}-rep"
    before = report.read_bytes()
    found = taken(tool, mode, force=True)
    assert found.capture is None
    assert found.reason
    assert report.read_bytes() == before  # nor lost, where the tool wrote no other
    assert not [path for path in taken.folder.iterdir() if path.suffix in (".csv", ".sqlite")]


@pytest.mark.parametrize("name", ["basic", "roofline", "full"])
def test_the_sets_of_ncu(name):
    (line,) = commands("ncu", "ncu", ["python"], "out", Options(set=name))
    assert line[line.index("--set") + 1] == name
    assert (line.count("--section") == 0) is (name == "full")
    # What ncu's sets hold by `ncu --list-sets` of 2024.1 and 2025.1, and what our table is made of.
    theirs = {"basic": {"LaunchStats", "Occupancy", "SpeedOfLight"}, "roofline": {"SpeedOfLight"}}
    added = {line[index + 1] for index, word in enumerate(line) if word == "--section"}
    if name != "full":
        assert theirs[name] | added >= {
            "LaunchStats",
            "Occupancy",
            "SpeedOfLight",
            "MemoryWorkloadAnalysis",
            "ComputeWorkloadAnalysis",
            "WarpStateStats",
        }


@pytest.mark.parametrize(
    ("version", "clocks", "left_alone"),
    [
        ("2025.3.1.0", "none", True),
        (None, "none", True),
        ("2026.1.0.0", "none", True),
        ("2024.3.2.0", "none", False),
        ("2025.3.1.0", "base", False),
    ],
)
def test_clocks_left_alone_are_those_of_the_tensor_cores_too(version, clocks, left_alone):
    (line,) = commands("ncu", "ncu", ["python"], "out", Options(clock_control=clocks), version)
    words = " ".join(line)
    assert ("--pipeline-boost-state dynamic" in words) is left_alone
    assert "stable" not in words


# ── nsys ───────────────────────────────────────────────────────────────────────────────────────────


def test_nsys_takes_exports_and_prints(taken, fake_tools):
    found = taken("nsys").capture
    profile, export, stats = fake_tools.calls()
    assert (profile[0], export[0], stats[0]) == ("profile", "export", "stats")
    assert profile[1]["--capture-range"] == ["cudaProfilerApi"]
    assert profile[1]["--capture-range-end"] == ["stop"]  # its default would end the process with the window
    assert "nvtx_gpu_proj_sum" in stats[1]["--report"]
    assert (found.tool, found.tool_version, found.name) == ("nsys", "2025.5.1.121", "sdpa-flash")
    assert found.idle_ms == pytest.approx(0.001)
    assert (taken.folder / "profile_sdpa-flash_stats.txt").read_text().startswith("Processing")
    assert (taken.folder / "profile_sdpa-flash.nsys-rep").exists()


@pytest.mark.parametrize("mode", ["no-export", "old"])
def test_nsys_without_its_export_is_read_from_what_it_prints(taken, mode):
    found = taken("nsys", mode).capture
    assert [(row.short, row.calls) for row in found.kernels] == [("flash_fwd_kernel", 2)]
    assert found.idle_ms is None


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("silent", "no reports were generated"),
        ("nothing", "its last line was: Generating failed: the report is damaged"),
    ],
)
def test_nsys_fails_with_a_reason(taken, mode, words):
    assert words in taken("nsys", mode).reason


# ── what keeps a tool from being started ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("tool", ["ncu", "nsys"])
def test_without_a_gpu_nothing_is_started(tool):
    with pytest.raises(Unavailable, match=f"profile {tool}: device=cpu has no kernels to profile"):
        probe(tool, "cpu")


@pytest.mark.parametrize(("tool", "title"), [("ncu", "Nsight Compute"), ("nsys", "Nsight Systems")])
def test_a_tool_that_is_not_installed(tool, title, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("attnbench.machine.tools.FOLDERS", ())
    with pytest.raises(Unavailable, match=f"not on the PATH.*install {title}"):
        probe(tool, "cuda:0")


def test_a_torch_without_a_cuda_profiler(monkeypatch):
    import torch

    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {torch.profiler.ProfilerActivity.CPU})
    with pytest.raises(Unavailable, match="records CPU activity only"):
        probe("torch", "cuda:0")


def test_a_program_that_cannot_be_started(tmp_path):
    with pytest.raises(Unavailable, match="nowhere: cannot be started"):
        running.run([str(tmp_path / "nowhere")], timeout_s=1.0, log=tmp_path / "log")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is "
            "concurrently collecting profiling data.",
            "another profiler holds",
        ),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.", "does not support this driver"),
        (
            "==ERROR== The application returned an error: operation not permitted when stream is capturing",
            "inside a CUDA graph",
        ),
        ("unrecognised option '--cuda-graph-trace'", "does not know an option"),
        ("write error: No space left on device", "the disk is full"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "too little free memory"),
        ("Traceback\nValueError: /home/me/x.py is odd", "its last line was: ValueError: x.py is odd"),
    ],
)
def test_what_tools_say_in_our_words(text, words):
    found = running.reason("ncu", running.Finished(1, text, 1.0), 10.0)
    assert words in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # As a user of ncu reported it, and as ncu ends after a program that raised.
        (
            "==PROF== Connected to process 1 (/opt/python3.12)\n==ERROR== Error: Failed to prepare kernel for profiling\n"
            '==ERROR== Failed to profile kernel "gemv2N_kernel" in process 1\n==PROF== Disconnected from process 1\n'
            "==ERROR== An error occurred while trying to profile.\n==WARNING== No kernels were profiled.",
            "ncu: Error: Failed to prepare kernel for profiling",
        ),
        (
            'Traceback (most recent call last):\n  File "/a/b.py", line 1\nRuntimeError: CUDA error: misaligned address\n'
            "Compile with `TORCH_USE_CUDA_DSA`.\n==PROF== Disconnected from process 1\n==ERROR== The application returned an "
            "error code (1).\n==WARNING== No kernels were profiled.",
            "ncu: The application returned an error code (1). RuntimeError: CUDA error: misaligned address",
        ),
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n==WARNING== No kernels were profiled.",
            "this user may not read the GPU's counters",
        ),
        ("==ERROR== Failed to open lock file /tmp/nsight-compute-lock.", "set TMPDIR to a folder of your own"),
        ("==WARNING== No kernels were profiled.", "no launch in the window has a name that --kernel matches"),
    ],
)
def test_an_error_of_ncu_is_told_and_not_that_nothing_was_profiled(text, words):
    found = running.reason("ncu", running.Finished(1, text, 1.0), 10.0)
    assert words in found
    assert "\n" not in found
    assert words.startswith("no launch") is ("no kernel was profiled" in found)


# ── folders ────────────────────────────────────────────────────────────────────────────────────────


def test_a_taken_folder_is_numbered(tmp_path):
    path = tmp_path / "deep" / "profile_results"
    assert [open_folder(path, force=False).name for _ in range(3)] == [
        "profile_results",
        "profile_results-2",
        "profile_results-3",
    ]
    (tmp_path / "deep" / "profile_results-4").write_text("a file")
    assert open_folder(path, force=False).name == "profile_results-5"
    assert open_folder(path, force=True) == path


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    for path, force in ((tmp_path / "file" / "x", False), (tmp_path / "file", True)):
        with pytest.raises(UsageError, match=r"--out=.* cannot be made"):
            open_folder(path, force=force)
