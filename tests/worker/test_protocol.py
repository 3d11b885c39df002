"""The parent's side of the protocol against workers that are small scripts."""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
import time

import pytest
from small_runs import MISBEHAVING, by_name, small_run

from attnbench.errors import NothingToRun, WorkerError
from attnbench.record import Record, Status
from attnbench.sweep.run import execute
from attnbench.worker import process
from attnbench.worker.blame import HARNESS, BlamePage, Word, shared_memory
from attnbench.worker.outcome import without_paths
from attnbench.worker.process import Loss, Worker
from attnbench.worker.protocol import TURN, parse

RUN = small_run(["honest", "honest-too"], timeout=0.3)
GROUP, SETTINGS = RUN.plan[0], RUN.settings
READY = {"say": "ready", "environment": {"os": "Linux", "python": "3.11"}}
RECORD = {"workload": "attention", "case": {}, "case_id": "x", "group": "x", "backend": "honest", "status": "failed",
          "reason": "it was made to"}

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
        started.append(Worker("cpu"))
        return started[-1]

    yield start
    for one in started:
        one.close()


def measure(worker: Worker) -> tuple[float | Loss, list[Record], list[Word]]:
    assert worker.start() is None
    records, words = [], []
    result = worker.measure(GROUP, SETTINGS, [], on_record=records.append, on_word=words.append)
    return result, records, words


def loss_of(worker: Worker) -> tuple[Status, int, str, str]:
    result, _, _ = measure(worker)
    assert isinstance(result, Loss)
    return result.status, result.word.index, result.word.phase, result.reason


def test_a_record_and_done(worker):
    result, records, _ = measure(worker(f"""
        say(say="done", number=7, sampling_s=9)
        say(say="record", record={RECORD})
        say(say="done", number=1, sampling_s=1.5)
        time.sleep(9)
    """))
    assert result == 1.5, "and not what was said of another request"
    assert [record.reason for record in records] == ["it was made to"]


def test_a_record_that_was_sent_holds_although_the_worker_dies_then(worker):
    result, records, _ = measure(worker(f"""
        word(1, "first call")
        say(say="record", record={RECORD})
        os._exit(4)
    """))
    assert result == Loss(Status.CRASHED, Word(1, 1, "first call"),
                          "ended the process with exit code 4 during first call")
    assert len(records) == 1


def test_half_a_line_is_no_message(worker):
    half = '{"say": "record", "record": {"workload": "atte'
    result, records, _ = measure(worker(f"word(0, 'check: first data')\nraw({half!r})\nos._exit(0)"))
    assert (result.reason, records) == ("ended the process with exit code 0 during check: first data", [])
    assert result.word.index == 0


@pytest.mark.parametrize(("text", "words"), [
    ("hello\n", r"a line of its protocol is not JSON (Expecting value: line 1 column 1 (char 0)): b'hello'"),
    ("[1]\n", "a line of its protocol is not an object: b'[1]'"),
    ('{"do": "group"}\n', "a line of its protocol says nothing"),
    ('{"say": "record", "record": {"workload": 1}}\n', "record"),
])
def test_garbage_in_the_pipe_ends_this_worker_only(worker, text, words):
    status, index, phase, reason = loss_of(worker(f"word(1, 'set-up')\nraw({text!r})\ntime.sleep(9)"))
    assert (status, index, phase) == (Status.CRASHED, 1, "set-up")
    assert reason.startswith("the worker's protocol broke during set-up: worker")
    assert words in reason


def test_a_lost_context_names_the_backend(worker):
    assert loss_of(worker("""
        word(-1, "idle")
        say(say="lost", index=1, phase="sample", reason="AcceleratorError during sample: illegal address")
        time.sleep(9)
    """)) == (Status.FAILED, 1, "sample", "AcceleratorError during sample: illegal address")


def test_a_real_time_signal_has_no_name(worker):
    assert loss_of(worker("word(0, 'sample')\nos.kill(os.getpid(), 40)"))[3] == "killed by signal 40 during sample"


def test_the_last_line_of_the_log_is_of_the_turn_and_names_no_folder(worker):
    noise = "sys.stderr.write('x' * 200_000 + chr(10))\n"
    turn = f"sys.stderr.write('{TURN} first call' + chr(10))\n"
    end = "word(0, 'first call')\nos._exit(1)"
    assert loss_of(worker(noise + turn + end))[3] == (
        "ended the process with exit code 1 during first call; "
        "it printed 200038 bytes, of which the last 65536 are kept")
    cause = "sys.stderr.write('/home/me/src/kernel.cu:12: no memory at /tmp/me/x.so' + chr(10))\n"
    assert loss_of(worker(turn + cause + end))[3].endswith("; its last line was: kernel.cu:12: no memory at x.so")


def test_a_hang_is_no_word_for_the_timeout_and_ten_of_them_for_the_harness(worker):
    began = time.monotonic()
    assert loss_of(worker("word(1, 'first call')\ntime.sleep(60)")) == (
        Status.TIMEOUT, 1, "first call", "no progress for 0.3 s during first call")
    assert time.monotonic() - began < 3
    began = time.monotonic()
    assert loss_of(worker("word(-1, 'oracle')\ntime.sleep(60)")) == (
        Status.TIMEOUT, HARNESS, "oracle", "no progress for 3 s during oracle")
    assert time.monotonic() - began > 3


def test_progress_is_a_new_word(worker):
    result, _, words = measure(worker("""
        for i in range(12):
            word(0, "sample")
            time.sleep(0.1)
        say(say="done", number=1, sampling_s=1)
    """))
    assert result == 1.0
    assert len(words) >= 6


def test_a_worker_that_does_not_start(worker, monkeypatch):
    loss = worker(before="sys.exit('no CUDA device')").start()
    assert (loss.status, loss.reason) == (
        Status.CRASHED, "ended the process with exit code 1 during start; its last line was: no CUDA device")
    monkeypatch.setattr(process, "START_S", 0.2)
    loss = worker(before="time.sleep(60)").start()
    assert (loss.status, loss.reason) == (Status.TIMEOUT, "the worker did not start within 0 s")


def test_a_worker_gone_between_two_groups_is_a_loss_with_nobody_to_blame(worker):
    one = worker(before=f"say(**{READY})\nword(-1, 'idle')\nos._exit(0)")
    assert one.start() is None
    one._process.wait()
    result = one.measure(GROUP, SETTINGS, [], on_record=lambda record: None)
    assert (result.status, result.word.index) == (Status.CRASHED, HARNESS)


def test_closing_twice_and_closing_a_worker_that_hangs(worker):
    one = worker("time.sleep(60)")
    assert one.start() is None
    pid = one.pid
    one.close()
    one.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# ── the page ───────────────────────────────────────────────────────────────────────────────────────


def test_the_page_is_read_by_who_maps_it_too():
    page = BlamePage.create()
    other = BlamePage(os.dup(page.handle))
    assert other.read() == Word(1, HARNESS, "start")
    page.say(3, "phase " + "ü" * 40)
    assert other.read() == Word(2, 3, "phase " + "ü" * 21), "cut in the middle of a letter"
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
    with pytest.raises(NothingToRun, match=r"^worker: TMPDIR=/nowhere/at/all gives no folder for temporary files \(No "
                                           r"such file or directory\); a folder you may write to$"):
        shared_memory(1)


def test_the_page_cannot_be_cut_which_would_end_the_parent():
    page = BlamePage.create()
    with pytest.raises(PermissionError):
        os.ftruncate(page.handle, 0)
    assert page.read().phase == "start"
    page.close()


def test_what_a_backend_scribbles_on_the_page_is_not_shown():
    page = BlamePage.create()
    page._page[: 60] = b"\xff" * 60
    assert page.read() == Word(2**64 - 1, -1, "")
    page.say(7, "a\x1b[31m\nb\0c")
    assert page.read() == Word(2, 7, "a[31mb")
    page.close()


def test_parse_refuses_bytes_that_are_no_text():
    with pytest.raises(WorkerError, match="is not JSON"):
        parse(b"\xff\xfe{}")


@pytest.mark.parametrize(("text", "plain"), [
    ("no file /home/me/a b", "no file a b"),
    ("('/usr/lib/x.so', 1)", "('x.so', 1)"),
    ("~/models/y.pt is missing", "y.pt is missing"),
    ("GB/s and 1/2/3 and a / b", "GB/s and 1/2/3 and a / b"),
    ("see https://pytorch.org/docs/stable", "see https://pytorch.org/docs/stable"),
    ("src/kernel.cu:12", "src/kernel.cu:12"),
    ("expected [4, 2]/[8, 2]", "expected [4, 2]/[8, 2]"),
])
def test_records_name_no_folder(text, plain):
    assert without_paths(text) == plain
