"""The doctor on a machine with a fake H200, and on one without a GPU."""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

import fake_card

from attnbench.backends import registry
from attnbench.backends.base import Backend
from attnbench.cli import doctor
from attnbench.cli.doctor import CPU_TORCH
from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import Unavailable, UsageError
from attnbench.machine import child
from attnbench.machine.compile_cache import CompileCache, compile_cache
from attnbench.machine.device import CPU

SHIPPED = registry.all_backends()
nvml, no_driver = fake_card.nvml, fake_card.no_driver

STRANGERS = {
    "fine_lib": "",
    "broken_lib": "raise ImportError('undefined symbol: _ZN3c10')",
    "exit_lib": "import sys; sys.exit(0)",
    "crash_lib": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
}


def backend(name, **fields):
    """A backend of these fields whose session is never opened."""

    @contextmanager
    def session(self, case, inputs):
        raise AssertionError("doctor opens no session")
        yield

    fields = {
        "workload": "attention",
        "variant": "softmax",
        "install": "part of torch",
        "devices": ("cpu", "cuda"),
        "title": name,
        **fields,
    }
    return type(name, (Backend,), {"name": name, "session": session, **fields})()


@pytest.fixture
def backends(tmp_path, monkeypatch):
    """Libraries that behave in every way, and a backend on each."""
    folder = tmp_path / "strangers"
    folder.mkdir()
    for name, body in STRANGERS.items():
        (folder / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(folder))

    def refuse(self):
        raise Unavailable(f"{self.name}: torch=2.5 is too old; {self.install}")

    def explode(self):
        raise KeyError("what")

    listed = [
        backend("eager", tested="H200, torch 2.11.0"),
        backend("sdpa"),
        backend("needs-gpu", devices=("cuda",), tested="H200, torch 2.11.0"),
        backend("fine", module="fine_lib", distribution="numpy", tested="H200"),
        backend("gone", module="gone_lib.inner", install="pip install gone-lib==1.2"),
        backend("built", module="gone_lib", install="MAX_JOBS={max_jobs} pip install built"),
        backend("broken", module="broken_lib", install="pip install broken-lib", distribution="numpy"),
        backend("exits", module="exit_lib", install="pip install exit-lib"),
        backend("crashes", module="crash_lib", install="pip install [crash]"),
        backend("refuses", probe=refuse, install="pip install -U torch"),
        backend("explodes", probe=explode),
        registry.BrokenBackend("plugin", "entry point x:y does not import: ImportError: no"),
    ]
    monkeypatch.setattr(registry, "all_backends", lambda: {one.name: one for one in listed})


def parsed(*arguments):
    parser = Parser("doctor", "what")
    doctor.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def test_every_backend_is_judged_by_a_real_import(no_driver, backends, wide, capsys):
    assert doctor.run(parsed("--json", "-", "--device", "cpu")) == 0
    captured = capsys.readouterr()
    rows = {row["name"]: row for row in json.loads(captured.out)["backends"]}
    assert {name: (row["state"], row["reason"]) for name, row in rows.items()} == {
        "eager": ("ready", "ran on H200, torch 2.11.0"),
        "sdpa": ("untested", "imports; no run of it on record"),
        "needs-gpu": ("not here", "runs on cuda, not on cpu"),
        "fine": ("ready", "ran on H200"),
        "gone": ("missing", "module gone_lib is not installed"),
        "built": ("missing", "module gone_lib is not installed"),
        "broken": ("broken", "ImportError: undefined symbol: _ZN3c10"),
        "exits": ("broken", "SystemExit: 0"),
        "crashes": ("broken", "import crash_lib crashed (SIGSEGV)"),
        "refuses": ("missing", "torch=2.5 is too old"),
        "explodes": ("broken", "KeyError: 'what'"),
        "plugin": ("broken", "entry point x:y does not import: ImportError: no"),
    }
    assert rows["eager"]["version"] == importlib.metadata.version("torch")  # without its build, of the wheels of PyPI
    assert rows["broken"]["version"] == rows["fine"]["version"] is not None
    assert re.fullmatch(r"MAX_JOBS=\d+ pip install built", rows["built"]["install"])
    assert captured.err == ""  # no progress bar into a pipe


def test_what_another_kind_of_device_needs_is_not_imported(no_driver, backends, monkeypatch):
    """Each import is a process of seconds: on a CPU torch is the only heavy one, and this process has it."""
    from attnbench.machine import imports

    asked = []
    monkeypatch.setattr(
        imports,
        "try_imports",
        lambda modules, **more: (
            asked.append(modules) or {module: imports.ImportOutcome("imported", None, 0.0) for module in modules}
        ),
    )
    monkeypatch.setattr(registry, "all_backends", lambda: SHIPPED)
    rows = {row.name: row for row in doctor.check_backends(CPU, Output())}
    assert asked == [[]]
    assert rows["flash-attn-2"].state == "not here"
    assert rows["sdpa"].state == "ready"


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_the_build_of_torch_for_cpus_is_advised_where_it_is_not_here(
    no_driver, backends, wide, capsys, monkeypatch, cuda
):
    monkeypatch.setattr("torch.version.cuda", cuda)
    assert doctor.run(parsed("--device", "cpu")) == 0
    assert (CPU_TORCH in capsys.readouterr().out) == (cuda is not None)


def test_kernels_are_compiled_ahead_without_a_gpu_too(no_driver, backends, wide, capsys, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere/kept")
    assert doctor.run(parsed("--device", "cpu")) == 0
    assert "/somewhere/kept" in capsys.readouterr().out


def test_the_report_for_people(no_driver, backends, wide, capsys, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere/kept")
    assert doctor.run(parsed("--device", "cpu")) == 0
    text = capsys.readouterr().out
    assert "torch" in text.split("GPU")[0]
    lines = [line.strip() for line in text.partition("To install")[2].splitlines() if line.strip()]
    assert "1 more need a GPU" in text
    for word in ("needs-gpu", "ncu", "nsys", "cupti", "nvidia", "triton", "CUDA toolkit"):
        assert word not in text
    assert lines[0] == "pip install gone-lib==1.2"
    assert re.fullmatch(r"MAX_JOBS=\d+ pip install built", lines[1])
    assert lines[2:] == [
        "pip install broken-lib",
        "pip install exit-lib",
        "pip install [crash]",
        "pip install -U torch",
    ]
    assert "part of torch" not in text
    assert "Tuning" not in text


def test_a_card_that_torch_cannot_use_is_still_shown(nvml, backends, wide, capsys, monkeypatch, tmp_path):
    """Clocks now and at most, what holds them back, persistence, others, tuning commands; nothing is run."""
    monkeypatch.setenv("PATH", f"{fake_card.FAKES / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_SMI_CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr("attnbench.machine.advice.OLDEST", {"torch": (99, 0)})
    monkeypatch.setattr(torch.version, "cuda", None)
    assert doctor.run(parsed()) == 0
    text = capsys.readouterr().out
    words = " ".join(text.split())
    for wanted in (
        "is built without CUDA",
        "card NVIDIA H200, driver 580.95.05",
        "SM clock 345 MHz of 1980 MHz",
        "memory clock 3201 MHz of 3201 MHz",
        "held back by idle, power cap",
        "power 136.5 W of 700 W",
        "heat 41 °C",
        "memory 1024 MiB of 143771 MiB",
        "persistence off",
        "others on it python (pid 4242, 512 MiB)",
        "ncu answers: 2025.3.1.0",
        "sudo nvidia-smi -pm 1 # ",
        "sudo nvidia-smi -lgc 1980,1980 # ",
        "sudo nvidia-smi -rgc # ",
        "To bring up to date (for you to do; nothing here does it) pip install -U torch # ",
    ):
        assert wanted in words
    assert not (tmp_path / "calls").exists()
    assert nvml.read()["calls"] == []


def test_where_compiled_kernels_are_kept_and_how_large(nvml, backends, wide, capsys, monkeypatch, tmp_path):
    folder = tmp_path / "kept"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    assert compile_cache() == CompileCache(str(folder), 0, 0.0)
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        (folder / name / "kernel.cubin").write_bytes(bytes(2**20))
        (folder / name / "kernel.json").write_bytes(bytes(2**19))
    assert doctor.run(parsed("--json", "-")) == 0
    found = json.loads(capsys.readouterr().out)["compile_cache"]
    assert found == {"folder": str(folder), "kernels": 2, "mib": 3.0}
    assert doctor.run(parsed()) == 0
    assert f"compile cache {folder}: 2 kernels, 3 MiB" in " ".join(capsys.readouterr().out.split())
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    assert compile_cache().folder == str(tmp_path / ".triton" / "cache")
    knobs = pytest.importorskip("triton").knobs
    assert compile_cache().folder == knobs.cache.dir


def test_what_the_driver_does_not_tell_is_said_and_is_null(nvml, backends, wide, capsys, tmp_path):
    nvml.set(
        refuse=[
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
            "nvmlDeviceGetPersistenceMode",
        ]
    )
    assert doctor.run(parsed("--json", str(tmp_path / "doctor.json"))) == 0
    gpu = json.loads((tmp_path / "doctor.json").read_text())["gpu"]
    assert (gpu["state"]["sm_mhz"], gpu["state"]["throttle"], gpu["persistence"]) == (None, None, None)
    words = " ".join(capsys.readouterr().out.split())
    assert "SM clock unknown of 1980 MHz" in words
    assert "held back by not reported" in words


def test_it_fits_the_terminal_but_commands_stay_whole(nvml, backends, monkeypatch, capsys):
    report = doctor.examine(CPU, Output())
    monkeypatch.setattr(doctor, "examine", lambda device, output: report)
    for columns in (60, 80, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert doctor.run(parsed()) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > columns and not line.startswith("  ")] == []
        assert "  sudo nvidia-smi -lgc 1980,1980  # highest SM clock, within the power limit" in lines


def test_a_json_file_beside_the_report(no_driver, backends, wide, capsys, tmp_path):
    path = tmp_path / "doctor.json"
    assert doctor.run(parsed("--json", str(path))) == 0
    assert "Environment" in capsys.readouterr().out
    data = json.loads(path.read_text())
    assert data["environment"]["torch"] == torch.__version__
    assert data["gpu"] is None
    assert data["gpu_reason"]
    assert [one["name"] for one in data["profilers"]] == ["ncu", "nsys", "torch.profiler", "cupti-python"]
    assert list(tmp_path.glob("*.part")) == list(tmp_path.glob(".*.part")) == []


def test_a_json_path_that_cannot_be_written_is_refused_first(no_driver, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "examine", lambda device, output: pytest.fail("too late"))
    with pytest.raises(UsageError, match=str(tmp_path)):
        doctor.run(parsed(f"--json={tmp_path}"))


@pytest.mark.parametrize("watch", [(), ("--watch",)])
def test_a_gpu_asked_for_and_not_there_is_exit_3(no_driver, watch):
    with pytest.raises(Unavailable) as caught:
        doctor.run(parsed("--device", "cuda", *watch))
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--watch", "0"), "attnbench doctor: --watch=0 is not a period; 0.05 to 3600 seconds"),
        (("--watch", "nan"), "attnbench doctor: --watch=nan is not a period; 0.05 to 3600 seconds"),
        (("--watch", "--device", "cpu"), "attnbench doctor: --device=cpu has nothing to watch; auto, cuda or cuda:N"),
        (("--watch", "--json", "-"), "attnbench doctor: --json=- does not go with --watch; one of the two"),
        (("--device", "gpu"), "attnbench doctor: --device=gpu cannot be used; auto, cpu, cuda or cuda:N"),
    ],
)
def test_wrong_flags(nvml, arguments, words):
    with pytest.raises(UsageError, match=words):
        doctor.run(parsed(*arguments))


WATCH = """
import sys
from attnbench.cli import doctor
from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
parser = Parser("doctor", "what")
doctor.add_arguments(parser)
sys.exit(doctor.run(parser.parse_args(["--watch", "0.05"])))
"""


def test_watch_into_a_pipe_is_a_line_each_time_and_ctrl_c_is_exit_0(nvml):
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH],
        env=child.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = process.stdout.readline()
    nvml.card(sm_mhz=1755, instant_mw=698000, celsius=70, load=100, reasons=0)
    later = next(line for line in process.stdout if "1755" in line)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 0
    assert errors == ""
    assert first.split(" s  ", 1)[1] == (
        "clock 345 MHz  power 136.5 W  heat 41 °C  memory 1024 MiB  load 37 %  held back by idle, power cap\n"
    )
    assert "power 698 W  heat 70 °C" in later
    assert later.endswith("load 100 %  held back by nothing\n")


def test_watch_in_a_terminal_shows_the_range_seen(nvml):
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH],
        stdout=slave,
        stderr=slave,
        env={**child.environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(slave)
    text = ""
    while "seen 345 to 345" not in text:
        text += os.read(master, 4096).decode()
    nvml.card(sm_mhz=1755)
    while "seen 345 to 1755" not in text:
        text += os.read(master, 4096).decode()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    os.close(master)
    assert "NVIDIA H200, every 0.05 s" in text
    assert "idle, power cap" in text


def test_inside_a_container_it_says_what_that_holds_back(monkeypatch, capsys, no_driver):
    from attnbench.machine import container

    monkeypatch.setattr(doctor, "check_backends", lambda device, output: [])
    monkeypatch.setattr(container, "in_container", lambda: False)
    assert doctor.examine(CPU, Output()).container == []
    monkeypatch.setattr(container, "in_container", lambda: True)
    monkeypatch.setattr(container.os, "statvfs", lambda path: type("S", (), {"f_frsize": 1, "f_blocks": 2**26})())
    report = doctor.examine(CPU, Output())
    assert [one.what for one in report.container][:2] == ["/dev/shm", "memlock"]
    text = "".join(str(part) for part in doctor._render(report))
    assert "Container" in text
    assert report.container[0].todo == "--shm-size 8G"
