import os
import subprocess
import sys
import time
from pathlib import Path

from attnbench.machine import neighbours
from attnbench.machine.device import CPU, Device
from attnbench.machine.neighbours import Neighbours

MIB = 2**20


def test_who_was_there_before_us_is_somebody_else(nvml, monkeypatch):
    monkeypatch.setattr(neighbours, "_started", set)  # other tests may have left processes
    there = Neighbours(Device("cuda"))
    assert there.words() == "another process was on the card holding 512 MiB: times may be theirs too"
    nvml.card(processes=[[4242, 512 * MIB], [77, 100 * MIB]])
    assert there.words().startswith("another process was")  # 77 may be ourselves under another number
    nvml.card(processes=[[4242, 512 * MIB], [77, 0], [78, 0]])
    assert there.words().startswith("2 other processes were")
    nvml.card(processes=[])
    assert there.words() is None


def test_alone_under_our_own_or_the_drivers_number(nvml):
    nvml.card(processes=[])
    alone = Neighbours(Device("cuda"))
    for ourselves in (os.getpid(), 990077):
        nvml.card(processes=[[ourselves, 600 * MIB]])
        assert alone.words() is None


def test_processes_that_we_have_started_are_not_others(nvml):
    nvml.card(processes=[])
    alone = Neighbours(Device("cuda"))
    sleep = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", sleep], stdin=subprocess.PIPE) as child:
        own = [os.getpid(), child.pid, grandchild(child.pid)]
        nvml.card(processes=[[pid, 600 * MIB] for pid in own])
        assert alone.words() is None
        nvml.card(processes=[[pid, 600 * MIB] for pid in [*own, 1]])
        assert alone.words().startswith("another process was on the card")
        of_us = 1 + len(neighbours._started())
        nvml.card(processes=[[990000 + pid, 600 * MIB] for pid in range(of_us)])  # as numbered by a container's driver
        assert alone.words() is None
        nvml.card(processes=[[990000 + pid, 600 * MIB] for pid in range(of_us + 1)])
        assert alone.words().startswith("another process was on the card")
        child.communicate(b"\n")


def grandchild(pid):
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        time.sleep(0.01)
    return int(found[0])


def test_where_nobody_else_is_no_process_is_looked_at(nvml, monkeypatch):
    nvml.card(processes=[])
    monkeypatch.setattr(neighbours, "_started", lambda: 1 / 0)
    assert Neighbours(Device("cuda")).words() is None


def test_a_cpu_has_no_card():
    assert Neighbours(CPU).words() is None
