"""The parent's side of the protocol, with small scripts as workers."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import textwrap

import pytest
from small_runs import MISBEHAVING, by_name, small_run

from attnbench.errors import NothingToRun, WorkerError
from attnbench.machine.device import CPU
from attnbench.record import Record, Status
from attnbench.sweep.run import execute
from attnbench.worker import process, serve
from attnbench.worker.activity import HARNESS, Activity, ActivityPage, shared_memory
from attnbench.worker.process import NO_REASON, Loss, Worker
from attnbench.worker.protocol import TURN, parse
from waiting import Clock

RUN = small_run(["honest", "honest-too"])
GROUP, SETTINGS = RUN.plan[0], RUN.settings
READY = {"say": "ready", "environment": {"os": "Linux", "python": "3.11"}}
RECORD = {
    "workload": "attention",
    "case": {},
    "case_id": "x",
    "group": "x",
    "backend": "honest",
    "status": "failed",
    "reason": "it was made to",
}

SCRIPT = """
import json, os, struct, sys, time, signal, mmap
page_fd, read_fd, write_fd = map(int, sys.argv[2:5])
page = mmap.mmap(page_fd, mmap.PAGESIZE)
requests, answers = os.fdopen(read_fd), os.fdopen(write_fd, "w")
count = 0
def word(index, phase):
    global count
    count += 1
    struct.pack_into("<Qi48s", page, 0, count, index, phase.encode()[:48])
def say(**message):
    raw(json.dumps(message) + "\\n")
def raw(text):
    answers.write(text)
    answers.flush()
def hang():
    requests.read()
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Start a script as a worker: before it is asked, and once it is."""
    started = []

    def start(asked: str = "", before: str = f"say(**{READY})") -> Worker:
        script = tmp_path / "script.py"
        steps = [textwrap.dedent(SCRIPT), textwrap.dedent(before), "requests.readline()", textwrap.dedent(asked)]
        script.write_text("\n".join(steps))
        monkeypatch.setattr(process.child, "command", lambda module, *args: [sys.executable, str(script), *args])
        started.append(Worker(CPU))
        return started[-1]

    yield start
    for one in started:
        one.close()


def measure(worker: Worker, settings=SETTINGS) -> tuple[float | Loss, list[Record], list[Activity]]:
    assert worker.start() is None
    records, words = [], []
    result = worker.measure(GROUP, settings, [], on_record=records.append, on_activity=words.append)
    return result, records, words


def loss_of(worker: Worker, settings=SETTINGS) -> tuple[Status, int, str, str]:
    result, _, _ = measure(worker, settings)
    assert isinstance(result, Loss)
    return result.status, result.activity.index, result.activity.phase, result.reason


def test_a_record_and_done(worker):
    result, records, _ = measure(
        worker(f"""
        say(say="done", number=7, sampling_s=9)
        say(say="record", record={RECORD})
        say(say="done", number=1, sampling_s=1.5)
        hang()
    """)
    )
    assert result == 1.5, "and not what was said of another request"
    assert [record.reason for record in records] == ["it was made to"]


def test_a_record_that_was_sent_holds_although_the_worker_dies_then(worker):
    result, records, _ = measure(
        worker(f"""
        word(1, "first call")
        say(say="record", record={RECORD})
        os._exit(4)
    """)
    )
    assert result == Loss(
        Status.CRASHED, Activity(1, 1, "first call"), "ended the process with exit code 4 during first call"
    )
    assert len(records) == 1


def test_half_a_line_is_no_message(worker):
    half = '{"say": "record", "record": {"workload": "atte'
    result, records, _ = measure(worker(f"word(0, 'check: first data')\nraw({half!r})\nos._exit(0)"))
    assert (result.reason, records) == ("ended the process with exit code 0 during check: first data", [])
    assert result.activity.index == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello\n", r"a line of its protocol is not JSON (Expecting value: line 1 column 1 (char 0)): b'hello'"),
        ("[1]\n", "a line of its protocol is not an object: b'[1]'"),
        ('{"do": "group"}\n', "a line of its protocol says nothing"),
        ('{"say": "record", "record": {"workload": 1}}\n', "record"),
    ],
)
def test_garbage_in_the_pipe_ends_this_worker_only(worker, text, words):
    status, index, phase, reason = loss_of(worker(f"word(1, 'set-up')\nraw({text!r})\nhang()"))
    assert (status, index, phase) == (Status.CRASHED, 1, "set-up")
    assert reason.startswith("the worker's protocol broke during set-up: worker")
    assert words in reason


def test_a_lost_context_names_the_backend(worker):
    assert loss_of(
        worker("""
        word(-1, "idle")
        say(say="lost", index=1, phase="sample", reason="AcceleratorError during sample: illegal address")
        hang()
    """)
    ) == (Status.FAILED, 1, "sample", "AcceleratorError during sample: illegal address")


@pytest.mark.parametrize("reason", ["", " ", "/home/", "C:\\\\"])
def test_a_lost_context_always_has_a_reason(worker, reason):
    said = f"word(1, 'sample')\nsay(say='lost', index=1, phase='sample', reason='{reason}')\nhang()"
    assert loss_of(worker(said)) == (Status.FAILED, 1, "sample", NO_REASON)


def test_a_real_time_signal_has_no_name(worker):
    assert loss_of(worker("word(0, 'sample')\nos.kill(os.getpid(), 40)"))[3] == "killed by signal 40 during sample"


def test_the_last_line_of_the_log_is_of_the_turn_and_names_no_folder(worker):
    noise = "sys.stderr.write('x' * 200_000 + chr(10))\n"
    turn = f"sys.stderr.write('{TURN} first call' + chr(10))\n"
    end = "word(0, 'first call')\nos._exit(1)"
    assert loss_of(worker(noise + turn + end))[3] == (
        "ended the process with exit code 1 during first call; "
        "it printed 200038 bytes, of which the last 65536 are kept"
    )
    cause = "sys.stderr.write('/home/me/src/kernel.cu:12: no memory at /tmp/me/x.so' + chr(10))\n"
    assert loss_of(worker(turn + cause + end))[3].endswith("; its last line was: kernel.cu:12: no memory at x.so")


class OfWords(Clock):
    """The parent's clock: a second is over whenever it looks and the worker has this word; else time stands still."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self.phase, self.page, self.waited = phase, None, 0

    def monotonic(self) -> float:
        if self.page and self.page.read().phase == self.phase:
            self.waited += 1
            self.sleep(1.0)
        return self.perf_counter()


@pytest.mark.parametrize(("index", "phase", "timeouts"), [(1, "first call", 1), (HARNESS, "oracle", 10)])
def test_a_hang_is_no_word_for_the_timeout_and_ten_of_them_for_the_harness(worker, monkeypatch, index, phase, timeouts):
    clock, settings = OfWords(phase), dataclasses.replace(SETTINGS, timeout=2.0)
    clock.put_into(monkeypatch, process)
    monkeypatch.setattr(process, "POLL_S", 0.001)
    one = worker(f"word({index}, {phase!r})\nhang()")
    clock.page = one.page
    assert loss_of(one, settings) == (Status.TIMEOUT, index, phase, f"no progress for {2 * timeouts} s during {phase}")
    assert clock.waited > 2 * timeouts


def test_progress_is_a_new_word(worker, monkeypatch, tmp_path):
    """Each word comes when most of the time for it is over, and the next is said once it was seen."""
    clock, seen = Clock(), []
    clock.put_into(monkeypatch, process)
    monkeypatch.setattr(process, "POLL_S", 0.001)

    def on_activity(word: Activity) -> None:
        seen.append(word)
        if word.phase == "sample":
            clock.sleep(1.9)
            (tmp_path / f"seen {word.count}").touch()

    one = worker(f"""
        for i in range(12):
            word(0, "sample")
            while not os.path.exists({str(tmp_path)!r} + f"/seen {{count}}"):
                time.sleep(0.001)
        say(say="done", number=1, sampling_s=1)
    """)
    assert one.start() is None
    settings = dataclasses.replace(SETTINGS, timeout=2.0)
    assert one.measure(GROUP, settings, [], on_record=lambda record: None, on_activity=on_activity) == 1.0
    assert [word.count for word in seen if word.phase == "sample"] == list(range(1, 13))


def test_a_worker_that_does_not_start(worker, monkeypatch):
    loss = worker(before="sys.exit('no CUDA device')").start()
    assert (loss.status, loss.reason) == (
        Status.CRASHED,
        "ended the process with exit code 1 during start; its last line was: no CUDA device",
    )
    monkeypatch.setattr(process, "START_S", 0.2)
    loss = worker(before="hang()").start()
    assert (loss.status, loss.reason) == (Status.TIMEOUT, "the worker did not start within 0 s")


def test_a_worker_gone_between_two_groups_is_a_loss_with_nobody_to_blame(worker):
    one = worker(before=f"say(**{READY})\nword(-1, 'idle')\nos._exit(0)")
    assert one.start() is None
    one._process.wait()
    result = one.measure(GROUP, SETTINGS, [], on_record=lambda record: None)
    assert (result.status, result.activity.index) == (Status.CRASHED, HARNESS)


def test_closing_twice_and_closing_a_worker_that_hangs(worker):
    one = worker("hang()")
    assert one.start() is None
    pid = one.pid
    one.close()
    one.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# ── the page ───────────────────────────────────────────────────────────────────────────────────────


def test_the_page_is_read_by_who_maps_it_too():
    page = ActivityPage.create()
    other = ActivityPage(os.dup(page.handle))
    assert other.read() == Activity(1, HARNESS, "start")
    page.announce(3, "phase " + "ü" * 40)
    assert other.read() == Activity(2, 3, "phase " + "ü" * 21), "cut in the middle of a letter"
    page.close()
    assert other.read().index == 3
    other.close()


def test_without_files_in_memory_the_temporary_folder_serves(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    run = execute(small_run(["honest"]), backend_files=[MISBEHAVING])
    assert by_name(run)["honest"].status is Status.PASSED


def test_without_either_the_answer_is_one_line(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    monkeypatch.setenv("TMPDIR", "/nowhere/at/all")
    with pytest.raises(
        NothingToRun,
        match=r"^worker: TMPDIR=/nowhere/at/all gives no folder for temporary files \(No "
        r"such file or directory\); a folder you may write to$",
    ):
        shared_memory(1)


def test_the_page_cannot_be_cut_which_would_end_the_parent():
    page = ActivityPage.create()
    with pytest.raises(PermissionError):
        os.ftruncate(page.handle, 0)
    assert page.read().phase == "start"
    page.close()


def test_what_a_backend_scribbles_on_the_page_is_not_shown():
    page = ActivityPage.create()
    page._page[:60] = b"\xff" * 60
    assert page.read() == Activity(2**64 - 1, -1, "")
    page.announce(7, "a\x1b[31m\nb\0c")
    assert page.read() == Activity(2, 7, "a[31mb")
    page.close()


def test_parse_refuses_bytes_that_are_no_text():
    with pytest.raises(WorkerError, match="is not JSON"):
        parse(b"\xff\xfe{}")


def test_a_worker_imports_torch_without_collecting_garbage(monkeypatch):
    """It and the collections that walked all of torch were a third of what a small group took of a CPU."""
    said = []
    for name in ("disable", "enable", "freeze"):
        monkeypatch.setattr(serve.gc, name, lambda name=name: said.append(name))
    serve._import_torch()
    assert said == ["disable", "enable", "freeze"]
