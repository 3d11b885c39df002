import os

from attnbench.machine.neighbours import Neighbours, OtherLoad, _cpu_seconds

MIB = 2**20


def test_who_was_there_before_us_is_somebody_else(nvml):
    there = Neighbours("cuda")
    assert there.words() == "another process was on the card holding 512 MiB: times may be theirs too"
    nvml.card(processes=[[4242, 512 * MIB], [77, 100 * MIB]])
    assert there.words().startswith("another process was")  # 77 may be ourselves under another number
    nvml.card(processes=[[4242, 512 * MIB], [77, 0], [78, 0]])
    assert there.words().startswith("2 other processes were")
    nvml.card(processes=[])
    assert there.words() is None


def test_alone_under_our_own_or_the_drivers_number(nvml):
    nvml.card(processes=[])
    alone = Neighbours("cuda")
    for ourselves in (os.getpid(), 990077):
        nvml.card(processes=[[ourselves, 600 * MIB]])
        assert alone.words() is None


def test_a_cpu_has_no_card():
    assert Neighbours("cpu").words() is None


def test_what_others_use_of_a_cpu_is_all_less_our_own():
    seconds = [(100.0, 10.0, 0.0), (104.0, 11.0, 2.0), (104.3, 11.0, 2.1), (110.0, 17.0, 8.0)]
    load = OtherLoad(iter(seconds).__next__)
    assert load.cores() == 1.5  # 4 s of CPU in 2 s, 1 of them ours
    assert load.cores() == 1.5  # asked again at once
    assert load.cores() == 0.0
    assert OtherLoad(lambda: None).cores() is None


def test_the_systems_own_counters_are_read():
    everyone, own, _ = _cpu_seconds()
    assert everyone > own > 0
