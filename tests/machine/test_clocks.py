"""Locked clocks are reset on every exit path, including the death of the parent; no real GPU is touched."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from attnbench.errors import Unavailable, UsageError
from attnbench.machine import child, clocks
from attnbench.machine.clocks import locked_clocks, nearest, parse
from attnbench.machine.device import CPU, Device
from waiting import PATIENCE_S, alive, until

OPEN = (None, None)

PARENT = f"""
    import os, signal, sys
    from attnbench.machine import clocks
    from attnbench.machine.clocks import locked_clocks
    from attnbench.machine.device import Device
    clocks.START_S = {PATIENCE_S}
    with locked_clocks("1500,2619", Device("cuda")):
        {{body}}
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A guardian may take its time on a busy machine."""
    monkeypatch.setattr(clocks, "START_S", PATIENCE_S)


@pytest.fixture
def parent(nvml):
    """Starts a process that holds the clocks and says 'held'; ends what is left of it."""
    started = []

    def start(body="print('held', flush=True); signal.pause()", wait=True):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PARENT.format(body=body))],
            env=child.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        if wait:
            assert process.stdout.readline() == "held\n"
            assert nvml.locked() == (1500, 2619)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stdin.close()


def test_locked_inside_and_back_outside(nvml):
    with locked_clocks("1500", Device("cuda")):
        assert nvml.locked() == (1500, None)
    assert nvml.locked() == OPEN
    assert [call[0] for call in nvml.read()["calls"]] == [
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceResetGpuLockedClocks",
    ]


def test_the_memory_clock_too(nvml):
    with locked_clocks("1200,1593", Device("cuda")):
        assert nvml.locked() == (1200, 1593)
    assert nvml.locked() == OPEN


def test_only_the_card_asked_for(nvml):
    nvml.add("NVIDIA H200", 1)
    with locked_clocks("1980", Device("cuda", 1)):
        assert (nvml.locked(0), nvml.locked(1)) == (OPEN, (1980, None))
    assert nvml.locked(1) == OPEN


def test_an_exception_passes_and_the_clocks_go_back(nvml):
    with pytest.raises(ZeroDivisionError) as caught, locked_clocks("1500", Device("cuda")):
        1 / 0  # noqa: B018
    assert nvml.locked() == OPEN
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_parent(nvml, parent, number):
    parent().send_signal(number)
    assert nvml.wait_locked(OPEN) == OPEN


def test_ctrl_c_in_the_terminal(nvml, parent):
    """A terminal sends Ctrl-C to the whole process group: the guardian is not in it."""
    process = parent("""
        try:
            print('held', flush=True); signal.pause()
        except KeyboardInterrupt:
            print('cleaning', flush=True)
            sys.stdin.readline()
            raise""")
    guardian = _guardian(process.pid)
    assert os.getpgid(guardian) not in (process.pid, os.getpgid(0))
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "cleaning\n"
    assert nvml.locked() == (1500, 2619)
    assert alive(guardian)
    process.stdin.write("go on\n")
    process.stdin.flush()
    process.wait()
    assert process.returncode == -signal.SIGINT
    assert nvml.locked() == OPEN  # before the parent was gone, not some time after


def test_killed_while_a_forked_child_holds_the_pipe(nvml, parent):
    process = parent("""
        if os.fork() == 0:
            signal.pause()
        print('held', flush=True); signal.pause()""")
    os.kill(process.pid, signal.SIGKILL)
    assert nvml.wait_locked(OPEN) == OPEN
    os.killpg(process.pid, signal.SIGKILL)


def test_a_forked_child_does_not_delay_the_normal_end(nvml, parent):
    process = parent("""
        if os.fork() == 0:
            signal.pause()
        print('held', flush=True)
        sys.stdin.readline()""")
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert nvml.wait_locked(OPEN) == OPEN
    os.killpg(process.pid, signal.SIGKILL)


def test_killed_in_the_middle_of_locking(nvml, parent):
    nvml.set(slow_s=0.3)
    process = parent(wait=False)
    assert until(lambda: nvml.read()["calls"] or nvml.locked() != OPEN)
    os.kill(process.pid, signal.SIGKILL)
    assert nvml.wait_locked(OPEN) == OPEN
    assert nvml.wait_call("nvmlDeviceResetMemoryLockedClocks")


def test_a_guardian_that_is_stopped_gives_back_and_is_missed(nvml):
    def stopped_inside():
        with locked_clocks("1500", Device("cuda")):
            os.kill(_guardian(), signal.SIGTERM)
            assert nvml.wait_locked(OPEN) == OPEN

    with pytest.raises(Unavailable, match=r"lock_clocks=on may still be in force; .* sudo nvidia-smi -rgc$"):
        stopped_inside()


def test_clocks_that_do_not_go_back_are_told(nvml):
    with (
        pytest.raises(Unavailable, match=r"may still be in force.*sudo nvidia-smi -rgc && sudo nvidia-smi -rmc$"),
        locked_clocks("1500,2619", Device("cuda")),
    ):
        nvml.set(refuse=["nvmlDeviceResetGpuLockedClocks"])


def test_clocks_that_do_not_go_back_are_told_beside_an_exception(nvml):
    def fails_inside():
        with locked_clocks("1500", Device("cuda")):
            nvml.set(refuse=["nvmlDeviceResetGpuLockedClocks"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fails_inside()
    assert "sudo nvidia-smi -rgc" in caught.value.__notes__[0]


def test_no_permission_names_the_commands(nvml):
    nvml.set(permission=False)
    with pytest.raises(Unavailable) as caught, locked_clocks("1500,2619", Device("cuda")):
        pytest.fail("the block must not run")
    assert str(caught.value) == (
        "clocks: lock_clocks=1500,2619 is not permitted (Insufficient Permissions); an administrator locks them with: "
        "sudo nvidia-smi -lgc 1500,1500 && sudo nvidia-smi -lmc 2619,2619; "
        "afterwards: sudo nvidia-smi -rgc && sudo nvidia-smi -rmc"
    )
    assert not getattr(caught.value, "__notes__", [])


def test_no_permission_on_one_card_of_several(nvml):
    nvml.add("NVIDIA H200", 1)
    nvml.set(permission=False)
    words = "sudo nvidia-smi -i 1 -lgc 1980,1980; afterwards: sudo nvidia-smi -i 1 -rgc$"
    with pytest.raises(Unavailable, match=words), locked_clocks("1980", Device("cuda", 1)):
        pytest.fail("the block must not run")


def test_a_card_that_locks_sm_but_not_memory_is_left_open(nvml):
    nvml.set(refuse=["nvmlDeviceSetMemoryLockedClocks"])
    with (
        pytest.raises(Unavailable, match=r"lock_clocks=1500,2619 cannot be set; .*Not Supported"),
        locked_clocks("1500,2619", Device("cuda")),
    ):
        pytest.fail("the block must not run")
    assert nvml.locked() == OPEN


@pytest.mark.parametrize(
    "spec", ["", "fast", "1980,", ",2619", "1980,2619,1", "-5", "0", "1980.5", "1e3", " 1980", "1980;2619"]
)
def test_a_spec_that_is_no_spec(nvml, spec):
    with pytest.raises(UsageError) as caught, locked_clocks(spec, Device("cuda")):
        pytest.fail("the block must not run")
    assert str(caught.value) == (
        f"clocks: lock_clocks={spec} is not SM[,MEM]; one or two whole numbers of MHz, such as 1500 or 1500,2619"
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("1501", "has no SM clock of 1501 MHz on this card; 345 to 1980, nearest 1500 and 1515"),
        ("9999", "has no SM clock of 9999 MHz on this card; 345 to 1980, nearest 1980"),
        ("1", "has no SM clock of 1 MHz on this card; 345 to 1980, nearest 345"),
        ("1500,2600", "has no memory clock of 2600 MHz on this card; 1593 to 3201, nearest 1593 and 2619"),
        ("1500,1593", "has no SM clock of 1500 MHz on this card; 1200 to 1980, nearest 1200 and 1980"),
    ],
)
def test_clocks_the_card_does_not_run_at(nvml, spec, words):
    with pytest.raises(UsageError) as caught, locked_clocks(spec, Device("cuda")):
        pytest.fail("the block must not run")
    assert str(caught.value) == f"clocks: lock_clocks={spec} {words}"
    assert nvml.read()["calls"] == []


def test_a_card_that_keeps_its_clocks_secret_is_asked_anyway(nvml):
    nvml.set(refuse=["nvmlDeviceGetSupportedMemoryClocks"])
    with locked_clocks("1501", Device("cuda")):
        assert nvml.locked() == (1501, None)


def test_a_cpu_has_no_clocks_to_lock(nvml):
    with (
        pytest.raises(UsageError, match="lock_clocks=1980 cannot be set on cpu; a CUDA device"),
        locked_clocks("1980", CPU),
    ):
        pytest.fail("the block must not run")


def test_no_driver(no_driver):
    with pytest.raises(Unavailable, match="Driver Not Loaded"), locked_clocks("1980", Device("cuda")):
        pytest.fail("the block must not run")


def test_parse_and_nearest():
    assert parse("1980") == (1980, None)
    assert parse("1980,2619") == (1980, 2619)
    assert nearest(7, [10, 5, 1]) == [5, 10]
    assert nearest(5, [10, 5, 1]) == [5]


def _guardian(parent="self"):
    """Process id of the child of a process that guards."""
    tasks = Path(f"/proc/{parent}/task").iterdir()
    children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    return next(int(pid) for pid in children if b"clock_guard" in Path(f"/proc/{pid}/cmdline").read_bytes())
