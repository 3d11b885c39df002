"""One run at a time on a GPU: processes exclude each other, threads of one do not, and a death releases the lock."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from attnbench.errors import Unavailable
from attnbench.machine import child, gpu_lock
from attnbench.machine.device import CPU, Device
from attnbench.machine.gpu_lock import GpuLock, Held, holding

GPU = Device("cuda", 1)
UUID = "GPU-0badcafe-1111"
HOLDER = f"""
import sys
sys.argv = ["/usr/bin/attnbench", "run", "gpt2-small"]
from attnbench.machine.device import Device
from attnbench.machine.gpu_lock import GpuLock
GpuLock(Device("cuda", 1), uuid={UUID!r}).acquire(lambda text: None)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(folder):
    """Another process that has the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env={**child.environment(), "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_who_holds_a_gpu_is_named_and_keeps_others_off(holder):
    with pytest.raises(
        Unavailable,
        match=rf"^attnbench: device=cuda:1 is held by attnbench run gpt2-small \(process {holder.pid}, since [0-9:]+ UTC\); "
        r"leave out --no-wait",
    ):
        GpuLock(GPU, wait=False, uuid=UUID).acquire(pytest.fail)
    other = GpuLock(GPU, wait=False, uuid="GPU-2")
    other.acquire(pytest.fail)
    other.release()


def test_a_lock_is_waited_for_and_a_killed_holder_lets_go(holder, monkeypatch):
    monkeypatch.setattr(gpu_lock, "LOOK_S", 0.01)
    said = []

    def say(text):
        said.append(text)
        holder.kill()

    lock = GpuLock(GPU, uuid=UUID)
    lock.acquire(say)
    lock.release()
    assert len(said) == 1
    assert said[0].startswith(f"waiting for cuda:1, which is held by attnbench run gpt2-small (process {holder.pid}, ")


def test_threads_of_one_process_share_it_until_the_last_lets_go(folder):
    first, second = (GpuLock(GPU, wait=False, uuid=UUID) for _ in range(2))
    first.acquire(pytest.fail)
    thread = threading.Thread(target=second.acquire, args=(pytest.fail,))
    thread.start()
    thread.join()
    first.release()
    assert free() is False
    second.release()
    second.release()
    assert free() is True


def free() -> bool:
    """Whether another process gets it at once."""
    lines = "GpuLock(Device('cuda', 1), wait=False, uuid='GPU-0badcafe-1111').acquire(print)"
    code = f"from attnbench.machine.device import Device\nfrom attnbench.machine.gpu_lock import GpuLock\n{lines}"
    env = {**child.environment(), "TMPDIR": tempfile.gettempdir()}
    return subprocess.run([sys.executable, "-c", code], env=env, stderr=subprocess.DEVNULL).returncode == 0


def test_what_has_no_uuid_has_no_lock(folder):
    lock = GpuLock(CPU, wait=False)
    lock.acquire(pytest.fail)
    lock.release()
    assert list(folder.iterdir()) == []


def test_a_lock_file_with_nonsense_or_a_link_in_its_place_is_answered_in_one_line(holder, folder, monkeypatch):
    place = Path(gpu_lock._place(UUID))
    place.write_text("[1, 2")
    with pytest.raises(Unavailable, match="is held by another run;"):
        GpuLock(GPU, wait=False, uuid=UUID).acquire(pytest.fail)
    place.write_text('{"command": "a\\u001b[31mb", "process": 1, "since": "x"}')
    with pytest.raises(Unavailable) as refused:
        GpuLock(GPU, wait=False, uuid=UUID).acquire(pytest.fail)
    assert "\x1b" not in str(refused.value)
    gpu_lock._place("GPU-3").symlink_to(folder / "elsewhere")
    with pytest.raises(Unavailable, match=r"^device: lock=\S+ cannot be taken"):
        GpuLock(GPU, wait=False, uuid="GPU-3").acquire(pytest.fail)
    assert not (folder / "elsewhere").exists()
    place.write_text("[" * 5000)
    with pytest.raises(Unavailable, match="is held by another run;"):
        GpuLock(GPU, wait=False, uuid=UUID).acquire(pytest.fail)


def test_somebody_elses_file_under_the_locks_name_is_left_alone(folder):
    private = folder / "private"
    private.write_text("secret")
    private.chmod(0o600)
    gpu_lock._place("GPU-4").hardlink_to(private)
    os.mkfifo(gpu_lock._place("GPU-5"))
    for uuid in ("GPU-4", "GPU-5"):
        with pytest.raises(Unavailable, match=r"cannot be taken \(it is no plain file of its own"):
            GpuLock(GPU, wait=False, uuid=uuid).acquire(pytest.fail)
    assert private.read_text() == "secret"
    assert private.stat().st_mode & 0o777 == 0o600


def test_several_locks_have_one_order_however_a_process_numbers_its_gpus():
    here = [GpuLock(Device("cuda", 0), uuid="GPU-a"), GpuLock(Device("cuda", 1), uuid="GPU-b")]
    there = [GpuLock(Device("cuda", 0), uuid="GPU-b"), GpuLock(Device("cuda", 1), uuid="GPU-a")]
    order = [[lock._uuid for lock in sorted(locks, key=GpuLock.order)] for locks in (here, there)]
    assert order == [["GPU-a", "GPU-b"]] * 2


def test_several_are_held_all_or_none(holder, monkeypatch):
    uuids = {"cuda:0": "GPU-2", "cuda:1": UUID}
    monkeypatch.setattr(GpuLock, "_known", lambda lock: setattr(lock, "_uuid", uuids[str(lock.device)]) or lock._uuid)
    both = Device("cuda", 1), Device("cuda", 0)
    with pytest.raises(Held, match="device=cuda:1 is held by"), holding(both, pytest.fail, wait=False):
        pytest.fail("one of them is another's")
    assert GpuLock._held == {}
    holder.kill()
    holder.wait()
    with holding(both, pytest.fail, wait=True):
        assert set(GpuLock._held) == set(uuids.values())
        assert free() is False
    assert GpuLock._held == {}


@pytest.mark.parametrize(
    "words",
    [
        "load hstu-serving --device cpu --config tiny --scenario gaps --rate 20",
        "profile torch --device cpu --seqlen 16 --backends eager --dtype fp32",
        "links --ranks 2",
    ],
)
def test_what_measures_without_a_run_takes_the_lock_too(words, folder, monkeypatch, capsys):
    from attnbench.cli import main

    asked = []

    def acquire(lock, say):
        asked.append(lock.wait)
        raise Held("attnbench: device=cuda:0 is held by another run")

    monkeypatch.chdir(folder)
    monkeypatch.setattr(GpuLock, "acquire", acquire)
    assert main(words.split()) == main([*words.split(), "--no-wait"]) == 3
    assert asked == [True, False]
    assert capsys.readouterr().err.splitlines()[-1] == "attnbench: device=cuda:0 is held by another run"
