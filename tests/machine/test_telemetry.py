"""Power beside a measurement."""

import threading
import time

from attnbench.machine.telemetry import PowerSampler


def test_readings_are_stamped_in_seconds_since_entering(nvml):
    with PowerSampler("cuda", period_s=0.02) as power:
        before = time.perf_counter() - power.entered_s
        time.sleep(0.15)
        nvml.card(instant_mw=650250, celsius=66)
        time.sleep(0.15)
        inside = power.series()
    after = time.perf_counter() - power.entered_s
    series = power.series()
    assert before < 0.01
    assert list(series.at_s) == sorted(series.at_s)
    assert series.at_s[0] < 0.1
    assert series.at_s[-1] < after
    assert 6 <= len(series.at_s) <= 16  # 0.3 s at 20 ms, and a busy machine
    assert (series.watts[0], series.celsius[0]) == (136.5, 41.0)
    assert (series.watts[-1], series.celsius[-1]) == (650.25, 66.0)
    assert 0 < len(inside.at_s) <= len(series.at_s)


def test_a_start_leaves_the_warm_up_out_and_the_clock_alone(nvml):
    with PowerSampler("cuda", period_s=0.02) as power:
        time.sleep(0.2)
    whole = power.series()
    late = power.series(start_s=whole.at_s[3])
    assert late.at_s == whole.at_s[3:]
    assert late.watts == whole.watts[3:]
    assert power.series(start_s=99.0) is None


def test_a_cpu_has_no_series_and_no_thread(nvml):
    threads = threading.active_count()
    with PowerSampler("cpu") as power:
        assert threading.active_count() == threads
    assert power.series() is None


def test_no_driver_no_series(no_driver):
    with PowerSampler("cuda") as power:
        pass
    assert power.series() is None


def test_a_card_that_hides_its_power_has_no_series(nvml):
    nvml.set(refuse=["nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"])
    with PowerSampler("cuda") as power:
        pass
    assert power.series() is None


def test_a_reading_that_fails_is_none_in_the_series(nvml):
    with PowerSampler("cuda", period_s=0.02) as power:
        time.sleep(0.06)
        nvml.set(refuse=["nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"])
        time.sleep(0.1)
    series = power.series()
    assert (series.watts[0], series.watts[-1], series.celsius[-1]) == (136.5, None, 41.0)


def test_the_thread_ends_with_an_exception_and_the_sampler_can_be_used_again(nvml):
    power = PowerSampler("cuda", period_s=0.02)
    threads = threading.active_count()
    try:
        with power:
            raise ZeroDivisionError
    except ZeroDivisionError:
        assert threading.active_count() == threads
    with power:
        time.sleep(0.05)
    assert power.series().at_s[0] < 0.05
