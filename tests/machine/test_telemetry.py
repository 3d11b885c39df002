"""Power during a measurement."""

import threading
import time

import pytest

from attnbench.machine import telemetry
from attnbench.machine.device import CPU, Device
from attnbench.machine.nvml import open_gpu
from attnbench.machine.telemetry import PowerSampler
from waiting import Clock, until


@pytest.fixture
def sampled():
    """Wait until a sampler has so many more readings."""

    def wait(power, count=2):
        wanted = len(power._readings) + count
        assert until(lambda: len(power._readings) >= wanted)

    return wait


def test_readings_are_stamped_in_seconds_since_entering(nvml, sampled, monkeypatch):
    answered = []

    def opened(device):
        gpu = open_gpu(device)
        answered.append(time.perf_counter())
        return gpu

    monkeypatch.setattr(telemetry, "open_gpu", opened)
    with PowerSampler(Device("cuda"), period_s=0.02) as power:
        before = time.perf_counter()
        sampled(power)
        nvml.card(instant_mw=650250, celsius=66)
        sampled(power)
        inside = power.series()
    after = time.perf_counter() - power.entered_s
    series = power.series()
    assert answered[0] <= power.entered_s <= before
    assert list(series.at_s) == sorted(series.at_s)
    assert all(0.02 * index <= at < after for index, at in enumerate(series.at_s)), "none before its period"
    assert (series.watts[0], series.celsius[0]) == (136.5, 41.0)
    assert (series.watts[-1], series.celsius[-1]) == (650.25, 66.0)
    assert 0 < len(inside.at_s) <= len(series.at_s)


def test_a_reading_a_period_and_none_is_made_up_for(monkeypatch):
    """On a clock of its own: the third query takes two and a half periods, the others a tenth."""
    clock, queries = Clock(), []

    class Card:
        def power_w(self):
            queries.append(clock.perf_counter())
            clock.sleep(0.05 if len(queries) == 3 else 0.002)
            return 100.0

        def celsius(self):
            return None

    class Ended:
        def wait(self, seconds):
            clock.sleep(seconds)
            return len(queries) == 6

    clock.put_into(monkeypatch, telemetry)
    power = PowerSampler(Device("cuda"), period_s=0.02)
    power.entered_s, power._stop = clock.perf_counter(), Ended()
    power._read(Card())
    series = power.series()
    assert series.at_s == pytest.approx((0.001, 0.021, 0.065, 0.091, 0.111, 0.131))
    assert series.celsius == (None,) * 6


def test_a_start_leaves_the_warm_up_out_and_the_clock_alone(nvml, sampled):
    with PowerSampler(Device("cuda"), period_s=0.02) as power:
        sampled(power, 5)
    whole = power.series()
    late = power.series(start_s=whole.at_s[3])
    assert late.at_s == whole.at_s[3:]
    assert late.watts == whole.watts[3:]
    assert power.series(start_s=whole.at_s[-1] + 1.0) is None


def test_a_cpu_has_no_series_and_no_thread(nvml):
    threads = threading.active_count()
    with PowerSampler(CPU) as power:
        assert threading.active_count() == threads
    assert power.series() is None


def test_no_driver_no_series(no_driver):
    with PowerSampler(Device("cuda")) as power:
        pass
    assert power.series() is None


def test_a_card_that_hides_its_power_has_no_series(nvml):
    nvml.set(refuse=["nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"])
    with PowerSampler(Device("cuda")) as power:
        pass
    assert power.series() is None


def test_a_reading_that_fails_is_none_in_the_series(nvml, sampled):
    with PowerSampler(Device("cuda"), period_s=0.02) as power:
        sampled(power)
        nvml.set(refuse=["nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"])
        sampled(power)
    series = power.series()
    assert (series.watts[0], series.watts[-1], series.celsius[-1]) == (136.5, None, 41.0)


def test_the_thread_ends_with_an_exception_and_the_sampler_can_be_used_again(nvml, sampled):
    power = PowerSampler(Device("cuda"), period_s=0.02)
    threads = threading.active_count()
    try:
        with power:
            raise ZeroDivisionError
    except ZeroDivisionError:
        assert threading.active_count() == threads
    first = power.entered_s
    with power:
        sampled(power, 1)
        seconds = time.perf_counter() - power.entered_s
    assert power.entered_s > first
    assert 0 <= power.series().at_s[0] <= seconds, "of its own entering"
