"""Imports in processes of their own: whatever they do, the result is one sentence."""

import sys

import pytest

from attnbench.machine import child
from attnbench.machine.imports import try_imports
from waiting import PATIENCE_S, Clock, gone, until

MODULES = {
    "good": "VALUE = 1",
    "noisy": "import sys; print('out'); print('err', file=sys.stderr)",
    "exits": "import sys; sys.exit(0)",
    "leaves": "import os, sys; print('goodbye', file=sys.stderr, flush=True); os._exit(0)",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "aborts": "import os; os.abort()",
    "raises": "raise RuntimeError('built for CUDA 12\\nand a second line')",
    "undefined": "raise ImportError('undefined symbol: _ZN3c10')",
    "needy": "import surely_not_there.inner",
    "silent": "raise ValueError",
    "waits": "import threading; threading.Thread(target=threading.Event().wait).start()",
    "parent/__init__": "",
}


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    for name, body in MODULES.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_every_way_an_import_ends(libraries):
    names = [
        "good",
        "noisy",
        "exits",
        "leaves",
        "crashes",
        "aborts",
        "raises",
        "undefined",
        "needy",
        "silent",
        "waits",
        "nobody_has_this",
        "nobody_has_this.inner",
        "parent.inner",
    ]
    seen = []
    found = try_imports(names, timeout_s=PATIENCE_S, at_once=2, done=seen.append)
    assert {name: (outcome.state, outcome.reason) for name, outcome in found.items()} == {
        "good": ("imported", None),
        "noisy": ("imported", None),
        "exits": ("broken", "SystemExit: 0"),
        "leaves": ("broken", "import leaves ended the process with code 0: goodbye"),
        "crashes": ("broken", "import crashes crashed (SIGSEGV)"),
        "aborts": ("broken", "import aborts crashed (SIGABRT)"),
        "raises": ("broken", "RuntimeError: built for CUDA 12"),
        "undefined": ("broken", "ImportError: undefined symbol: _ZN3c10"),
        "needy": ("broken", "needs module surely_not_there, which is not installed"),
        "silent": ("broken", "ValueError: no message"),
        "waits": ("imported", None),
        "nobody_has_this": ("missing", "module nobody_has_this is not installed"),
        "nobody_has_this.inner": ("missing", "module nobody_has_this is not installed"),
        "parent.inner": ("missing", "module parent.inner is not installed"),
    }
    assert sorted(seen) == sorted(names)
    assert "good" not in sys.modules


@pytest.fixture
def said(libraries):
    """The process id that a module wrote down; 0 before it did."""
    path = libraries / "pid"
    return lambda: int((path.read_text() if path.exists() else "") or 0)


def test_a_hanging_import_is_ended_with_what_it_started(libraries, said, monkeypatch):
    class OfHangs(Clock):
        """Two seconds a look, from when it hangs."""

        def perf_counter(self):
            self.sleep(2.0 if said() else 0.0)
            return super().perf_counter()

    OfHangs().put_into(monkeypatch, child)
    (libraries / "hangs.py").write_text(
        "import pathlib, signal, subprocess\n"
        f"pathlib.Path({str(libraries / 'pid')!r}).write_text(str(subprocess.Popen(['sleep', '999999']).pid))\n"
        "signal.pause()"
    )
    outcome = try_imports(["hangs"], timeout_s=5.0)["hangs"]
    assert (outcome.state, outcome.reason) == ("broken", "import hangs did not end within 5 s")
    assert outcome.seconds == 6.0
    assert gone(said())


def test_ctrl_c_leaves_no_import_behind(libraries, said):
    (libraries / "sleeps.py").write_text(
        f"import os, pathlib, signal\npathlib.Path({str(libraries / 'pid')!r}).write_text(str(os.getpid()))\n"
        "signal.pause()"
    )

    def interrupt(module):
        assert until(said)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        try_imports(["sleeps", "good"], at_once=2, done=interrupt)
    assert gone(said())


def test_the_current_folder_is_not_searched(libraries, tmp_path_factory, monkeypatch):
    here = tmp_path_factory.mktemp("here")
    (here / "only_here.py").write_text("")
    monkeypatch.chdir(here)
    assert try_imports(["only_here"])["only_here"].state == "missing"
