"""A process of its own describes a user's file; whatever its import does, planning reports one line."""

from __future__ import annotations

import os
import sys

import pytest

from attnbench.backends.base import Config
from attnbench.errors import Unavailable, UsageError
from attnbench.suites import user_backends
from attnbench.suites.load import load_suite
from attnbench.suites.plan import Request, build
from attnbench.suites.user_backends import known_backends
from waiting import PATIENCE_S

HEAD = """
from contextlib import contextmanager
from attnbench.backends.base import Backend, Config
from attnbench.errors import Unavailable
"""
BODY = """
class Mine(Backend):
    name, workload, variant, install, title = "mine", "attention", "softmax", "here", "My own"
    devices, compiles, distribution = ("cpu", "cuda"), True, "pytest"
    def configs(self, case): return [Config("b64-w4", {"block": 64, "size": case.headdim, "odd": {1}})]
    @contextmanager
    def session(self, case, inputs): yield
"""


def write(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_file_is_described_and_never_run_here(tmp_path, monkeypatch):
    path = write(tmp_path, f"import os\nopen('ran-in', 'a').write(f'{{os.getpid()}} ')\nprint('loud'){HEAD}{BODY}")
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    found = known_backends([path, path])["mine"]
    assert (found.name, found.title, found.workload, found.devices, found.compiles, found.install) == (
        "mine",
        "My own",
        "attention",
        ("cpu", "cuda"),
        True,
        "here",
    )
    assert found.version() == pytest.__version__
    assert list(found.configs(None)) == [Config("b64-w4", {"block": 64, "size": 64, "odd": "{1}"})]
    found.probe()
    with pytest.raises(Unavailable, match="a worker runs it"):
        found.session(None, None)
    known_backends([path])
    [pid] = (tmp_path / "ran-in").read_text().split()  # asked once
    assert int(pid) != os.getpid()
    assert not [name for name in set(sys.modules) - before if "mine" in name]


def test_a_changed_file_is_asked_again(tmp_path):
    path = write(tmp_path, HEAD + BODY)
    assert "mine" in known_backends([path])
    write(tmp_path, HEAD + BODY.replace('"mine"', '"other"'))
    assert {"mine", "other"} & set(known_backends([path])) == {"other"}


def test_a_probe_is_repeated_word_for_word(tmp_path):
    probe = '    def probe(self): raise Unavailable("mine: module=m is not installed; get it")\n'
    found = known_backends([write(tmp_path, HEAD + BODY + probe)])["mine"]
    assert found.version() is None
    with pytest.raises(Unavailable, match=r"^mine: module=m is not installed; get it$"):
        found.probe()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import os; os._exit(3)",
            "does not import: it ended the process with code 3; a Python file with a function attention, or a Backend",
        ),
        (
            "import sys; sys.exit(0)",
            "does not import: line 1: SystemExit: 0; a Python file with a function attention, or a Backend",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "does not import: it crashed (SIGSEGV); "),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 3)", "does not import: it crashed (signal 37); "),
        ("raise KeyboardInterrupt", "does not import: it crashed (SIGINT): KeyboardInterrupt; "),
        (
            "import time; time.sleep(999999)",
            "does not import: it did not end within 1 s; a Python file with a function attention, or a Backend",
        ),
        ("x = (", "does not import: line 1: SyntaxError: '(' was never closed; "),
        ("x = 1", "holds no backend; "),
        (HEAD + BODY.replace('"mine"', "3"), "has Mine.name=3; a name other than all, without blanks, "),
        (HEAD + BODY.replace('"mine"', '"a/b"'), "has Mine.name='a/b'; a name other than all, without blanks, "),
        (
            HEAD + BODY.replace('"mine"', r'"a\x1bb"'),
            r"has Mine.name='a\x1bb'; a name other than all, without blanks, ",
        ),
        (
            HEAD + BODY.replace('"mine"', r'"a\udc80b"'),
            r"has Mine.name='a\udc80b'; a name other than all, without blanks, ",
        ),
        (HEAD + BODY.replace('"mine"', '"a[b]"'), "has Mine.name='a[b]'; a name other than all, without blanks, "),
        (HEAD + BODY.replace('("cpu", "cuda")', '"cpu"'), 'has Mine.devices=\'cpu\'; a tuple of "cpu" and "cuda"'),
        (HEAD + BODY.replace("name, workload, variant", "name, work, variant"), "has Mine.workload='nothing'; a text"),
        (HEAD + BODY + "    def probe(self): raise OSError('no\\ndisk')\n", "cannot be described: OSError: no disk; "),
        (HEAD + BODY + "    def __init__(self): 1 / 0\n", "cannot be described: ZeroDivisionError: division by zero; "),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, monkeypatch, text, words):
    monkeypatch.setattr(user_backends, "TIMEOUT_S", PATIENCE_S if "sleep" not in text else 1.0)
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        known_backends([path])
    assert str(refused.value).startswith(f"backends: file={path} {words}")
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_two_files_of_one_name(tmp_path):
    one, two = write(tmp_path, HEAD + BODY, "one.py"), write(tmp_path, HEAD + BODY, "two.py")
    with pytest.raises(UsageError, match=rf"name=mine is defined twice: {one} and {two}; one backend a name"):
        known_backends([one, two])
    path = write(tmp_path, HEAD + BODY.replace('"mine"', '"eager"'))
    with pytest.raises(UsageError, match=rf"name=eager is defined twice: attnbench\.backends\.eager and {path}"):
        known_backends([path])


def test_a_plan_takes_its_word(tmp_path):
    path = write(tmp_path, HEAD + BODY.replace('("cpu", "cuda")', '("cuda",)'))
    request = Request(suite=load_suite("quick", "cpu"), device="cpu", files=(path,), backends=("all",), baseline="mine")
    run = build(request, run_id="00000001", command="", started="")
    assert run.plan[0].backends[0] == "mine"
    assert run.settings.baseline == "mine"


def test_a_name_no_file_can_have_is_not_there_and_no_process_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(user_backends, "ask", lambda *args, **kwargs: pytest.fail("asked"))
    text = write(tmp_path, "", "kernel.txt")
    for name, wrong in (
        ("a" * 5000 + ".py", "is not there"),
        ("\0.py", "is not there"),
        (str(tmp_path), "is a folder"),
        (text, r"does not end in \.py"),
    ):
        with pytest.raises(UsageError, match=f"{wrong}; a Python file with a function attention, or a Backend"):
            known_backends([name])
