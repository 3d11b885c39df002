"""Changes of globals by one backend must not reach the next."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode

from attnbench.check import globals as globals_of_check
from attnbench.check.globals import GlobalState, is_stuck
from attnbench.check.setting import Setting


def test_nothing_changed_says_nothing():
    assert GlobalState.capture().restore() == []


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda: torch.set_grad_enabled(False), "grad mode (True -> False)"),
        (lambda: torch.set_default_dtype(torch.float16), "default dtype (torch.float32 -> torch.float16)"),
        (lambda: torch.set_default_device("meta"), "default device (cpu -> meta)"),
        (lambda: torch.use_deterministic_algorithms(True), "deterministic algorithms (0 -> 2)"),
        (lambda: torch.set_autocast_enabled("cpu", True), "autocast of cpu (False -> True)"),
        (lambda: torch.backends.cuda.enable_math_sdp(False), "sdp math (True -> False)"),
        (lambda: torch.backends.cuda.enable_cudnn_sdp(False), "sdp cudnn (True -> False)"),
        (lambda: setattr(torch.backends.cudnn, "deterministic", True), "cudnn deterministic (False -> True)"),
        (
            lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
            "cuda matmul allow_fp16_reduced_precision_reduction (True -> False)",
        ),
        (lambda: torch.manual_seed(torch.initial_seed() + 1), "state of the CPU random generator (numbers were drawn)"),
    ],
)
def test_a_change_is_put_back_and_named(change, note):
    state = GlobalState.capture()
    change()
    assert state.restore() == [f"global left changed: {note}"]
    assert state.restore() == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda: torch.set_float32_matmul_precision("high"), "float32 matmul precision (highest -> high)"),
        (
            lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
            "cuda matmul fp32 precision (tf32) (none -> tf32)",
        ),
        (
            lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
            "cuda matmul fp32 precision (tf32) (none -> tf32)",
        ),
        (lambda: setattr(torch.backends, "fp32_precision", "tf32"), "fp32 precision (none -> tf32)"),
        (lambda: setattr(torch.backends.cudnn, "allow_tf32", False), "cudnn allow_tf32 (True -> False)"),
    ],
)
def test_the_old_and_the_new_precision_switches_are_put_back_together(change, word):
    def seen():
        return (
            torch.get_float32_matmul_precision(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cuda.matmul.fp32_precision,
            torch.backends.fp32_precision,
            torch.backends.mkldnn.matmul.fp32_precision,
            torch.backends.cudnn.allow_tf32,
        )

    before, state = seen(), GlobalState.capture()
    change()
    assert any(note.startswith(f"global left changed: {word}") for note in state.restore())
    assert seen() == before
    assert state.restore() == []


@pytest.mark.gpu
def test_the_current_stream_and_the_generator_of_the_card():
    torch.zeros(1, device="cuda")
    state, stream = GlobalState.capture(), torch.cuda.current_stream()
    torch.cuda.set_stream(torch.cuda.Stream())
    torch.rand(1, device="cuda")
    notes = state.restore()
    assert [note.split(":")[1].split("(")[0].strip() for note in notes] == [
        "current CUDA stream",
        "state of the random generator of cuda",
    ]
    assert torch.cuda.current_stream() == stream
    assert state.restore() == []


def test_what_cannot_be_put_back_is_told_apart(monkeypatch):
    values = {"niceness": 0, "umask": 18}

    def refuse(value: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(
        globals_of_check,
        "_settings",
        lambda: (
            Setting("niceness", lambda: values["niceness"], refuse),
            Setting("umask", lambda: values["umask"], lambda value: values.update(umask=value)),
        ),
    )
    state = GlobalState.capture()
    values.update(niceness=5, umask=0)
    notes = state.restore()
    assert notes == [
        "global left changed: niceness (0 -> 5), which cannot be restored",
        "global left changed: umask (18 -> 0)",
    ]
    assert list(map(is_stuck, notes)) == [True, False]
    values.update(umask=0)
    assert state.restore(but=frozenset({"umask"}))[1] == "global left changed: umask (18 -> 0), which is kept"


def test_what_an_import_appends_harms_nobody(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    state = GlobalState.capture()
    monkeypatch.setitem(sys.modules, "a_module_of_a_test", sys)
    sys.path.append("/behind/all")
    assert state.restore() == []
    sys.path.insert(0, "/before/all")
    assert state.restore() == ["global left changed: module search path"]
    assert "/before/all" not in sys.path


def test_a_context_that_was_closed_since_is_no_change():
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        inside = GlobalState.capture()
    assert inside.restore() == []
    outside = GlobalState.capture()
    with Mode():
        assert outside.restore() == [
            "global left changed: active modes of torch functions (() -> ('Mode',)), which cannot be restored"
        ]


def test_a_mode_that_forbids_the_question_is_an_answer():
    class Refuses(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            raise NotImplementedError

    state = GlobalState.capture()
    with Refuses():
        notes = state.restore()
    assert "global left changed: default device (cpu -> not readable), which cannot be restored" in notes
    assert GlobalState.capture().restore() == []


def test_tools_that_monitor_are_freed_and_named(monkeypatch):
    class Monitoring:
        """`sys.monitoring` of Python 3.12, as far as it is asked."""

        def __init__(self):
            self.tools, self.events = {0: "debugger"}, {}

        def get_tool(self, number):
            return self.tools.get(number)

        def set_events(self, number, events):
            self.events[number] = events

        def free_tool_id(self, number):
            del self.tools[number]

    monitoring = Monitoring()
    monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)
    state = GlobalState.capture()
    monitoring.tools[3] = "watcher"
    [note] = state.restore()
    assert note.startswith("global left changed: monitoring tools (('debugger', None, None, None, None, None) -> ")
    assert (monitoring.tools, monitoring.events) == ({0: "debugger"}, {3: 0})


@pytest.mark.parametrize("name", ["trace", "profile"])
def test_what_new_threads_are_traced_by_is_put_back(name):
    state = GlobalState.capture()
    getattr(threading, f"set{name}")(lambda frame, event, arg: None)
    assert state.restore() == [f"global left changed: {name} function of new threads"]
    assert getattr(threading, f"get{name}")() is None
