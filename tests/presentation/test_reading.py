"""Reading help is shown where it is true, and only there."""

import dataclasses
import re
import string

import pytest

from attnbench.presentation import reading
from attnbench.presentation.blocks import arrange
from attnbench.presentation.reading import COMPARE, read_sweep, read_table, rules
from attnbench.record import Memory, PowerSeries, Time
from attnbench.store.derive import derive
from made_up_run import H200, make_case, make_group, make_record, make_run

KNOWN = set(re.findall(r"\w+", reading.__doc__.split("of a row")[1])) | {"backends"}


def said(records, environment=H200, **settings):
    run = derive(make_run(records, environments=(environment,), **settings))
    return "\n".join(read_table(run, run.records))


def changed(records, **fields):
    return [dataclasses.replace(record, **fields) for record in records]


def timed(record, **fields):
    return dataclasses.replace(record, time=dataclasses.replace(record.time, **fields))


def group(base=300.0, other=300.0, **case):
    return make_group(make_case(**case), {"base": base, "other": other})


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_a_rule_speaks_of_facts_that_are_there(rule):
    fields = {name for text in (rule.say, rule.brief) for _, name, _, _ in string.Formatter().parse(text) if name}
    assert fields | set(rule.when) <= KNOWN
    assert rule.of in ("table", "fastest", "each")
    for condition in rule.when.values():
        for part in condition.split(","):
            assert len(part.split()) == 1 or part.split()[0] in COMPARE


@pytest.mark.parametrize(
    ("other", "sentence"),
    [(720.0, "a large gain"), (500.0, "a significant gain"), (400.0, "worth using"), (330.0, "less than a fifth")],
)
def test_a_speed_up_is_in_one_band(other, sentence):
    words = said(group(other=other))
    bands = ("a large gain", "a significant gain", "worth using", "less than a fifth", "nothing measured here")
    assert [band for band in bands if band in words] == [sentence]
    assert f"fast as base: {sentence}" in words or "faster than base" in words


def test_the_band_is_that_of_the_lower_end():
    (large,) = [record for record in group(other=602.0, seqlen=4096) if record.backend == "other"]
    records = [*group(seqlen=4096)[:1], large]
    run = make_run(records)
    wide = dataclasses.replace(
        large,
        speedup=dataclasses.replace(
            large.speedup or make_run(records).records[0].speedup or _speedup(), ratio=2.01, ci_low=1.97, ci_high=2.05
        ),
    )
    assert "at least 1.97 times as fast as base: a significant gain" in "\n".join(read_table(run, [records[0], wide]))
    close = dataclasses.replace(wide, speedup=dataclasses.replace(wide.speedup, ci_low=1.9999))
    assert "at least 1.99 times as fast as base: a significant gain" in "\n".join(read_table(run, [records[0], close]))
    told_nothing = dataclasses.replace(wide.speedup, ci_low=1.33, ci_high=11.0, verdict="unclear")
    unclear = dataclasses.replace(wide, speedup=told_nothing)
    assert "times as fast as" not in "\n".join(read_table(run, [records[0], unclear])), "no verdict, no praise"


def _speedup():
    return group()[1].speedup


def test_slower_is_said_as_plainly():
    assert "nothing measured here beats base" in said(group(other=200.0))
    assert "nothing measured" not in said([*group(other=200.0), *group(other=900.0)[1:]])


def test_good_and_poor_are_shares_of_the_ceiling_of_this_card():
    assert "reaches 67 % of what a plain matmul reaches here: good" in said(group(other=500.0))
    assert "reaches 27 % of what a plain matmul reaches here: room" in said(group(base=200.0, other=150.0))
    middle = said(group(base=350.0, other=370.0))
    assert "matmul" not in middle
    assert "matmul" not in said(changed(group(other=500.0), ceilings={}))


def test_ranks_share_the_work_and_each_has_a_ceiling_of_its_own():
    assert "reaches 34 % of what a plain matmul reaches here: room" in said(
        changed(group(other=500.0), counters={"ranks": 2.0})
    )


def test_bound_by_memory_the_ceiling_is_the_copy():
    slow = {"copy_gbps": 4.0, "matmul_tflops": 745.0}
    assert "of the rate of a plain copy, which bounds this case" in said(changed(group(), ceilings=slow))
    fast = {"copy_gbps": 4000.0, "matmul_tflops": 1e9}  # a share that is rounded to whole per cents reads as nothing
    assert re.search(r"moves its bytes at 0\.\d\d? % of the rate", said(changed(group(), ceilings=fast)))


def test_work_that_a_launch_skips_does_not_beat_the_machine():
    records = group(base=900.0, other=1500.0)
    assert "reaches 201 %" in said(records)
    sparse = [
        dataclasses.replace(record, work=dataclasses.replace(record.work, executed_flops=record.work.flops // 4))
        for record in records
    ]
    assert "reaches 50 %" not in said(sparse)
    assert "201 %" not in said(sparse)


def test_memory_in_comparison():
    base, other = group(other=330.0)
    less = dataclasses.replace(other, memory=Memory(peak_allocated_mb=64.0))
    assert "other needs 4 times less memory than base" in said([base, less])
    more = dataclasses.replace(other, memory=Memory(peak_allocated_mb=512.0))
    assert "other needs 2 times the memory of base" in said([base, more])
    assert "memory than" not in said([base, dataclasses.replace(other, memory=None)])


def test_a_small_batch_is_said_of_a_gpu_only():
    small = group(nheads=2, nheads_kv=2, seqlen=512)
    assert "8 tiles of 128 query rows do not fill 132 SMs" in said(small)
    assert "tiles" not in said(group())
    assert "tiles" not in said(small, dataclasses.replace(H200, gpu=None, sm_count=None))


def test_fp32_is_said_of_a_gpu_only():
    assert "--dtype bf16" in said(group(dtype="fp32"))
    assert "--dtype bf16" not in said(group())
    assert "--dtype bf16" not in said(group(dtype="fp32"), dataclasses.replace(H200, gpu=None))


def test_plain_pytorch_is_what_a_fused_kernel_is_held_against():
    def beside(base, plain, fused):
        return said(make_group(make_case(), {"base": base, "eager": plain, "fused": fused}))

    good = re.search(
        r"fused is at least (\S+) times as fast as plain PyTorch \(eager\): good", beside(300.0, 90.0, 400.0)
    )
    assert 4 < float(good[1]) < 400 / 90  # by the ends of both intervals
    assert "plain PyTorch" not in beside(300.0, 150.0, 400.0)
    assert "should be over twice as fast as plain PyTorch (eager); fused is not" in beside(300.0, 250.0, 400.0)
    assert "at least 3.3" in beside(300.0, 90.0, 200.0)  # the baseline is the fastest
    assert "plain PyTorch" not in beside(300.0, 500.0, 100.0)  # it is the fastest itself


def test_nothing_is_read_out_of_a_time_whose_interval_is_wider_than_it():
    records = make_group(make_case(), {"base": 300.0, "eager": 90.0, "fused": 700.0})
    assert "plain PyTorch (eager): good" in said(records)
    assert "plain matmul" in said(records)
    uneven = [
        timed(record, samples_ms=tuple(ms * (1 + 9 * (at % 2)) for at, ms in enumerate(record.time.samples_ms)))
        for record in records
    ]
    words = said(uneven)  # the ratios within rounds are as narrow as before
    assert "PyTorch" not in words
    assert "plain matmul" not in words


def test_gaps_launches_and_too_few_samples():
    first, second = group()
    idle = timed(second, busy_ms=0.8 * second.time.median_ms)
    assert re.search(r"no kernel runs during (19|20|21) % of the time of other:", said([first, idle]))
    poor = timed(second, busy_ms=0.5 * second.time.median_ms)
    assert re.search(r"busy for only (49|50|51) % of the time of other: poor \(under 70 %\)", said([first, poor]))
    slow = [timed(record, host_ms=2 * record.time.median_ms) for record in (first, second)]
    assert "longer than its kernels" in said(slow)
    long = [timed(record, host_ms=1200.0, median_ms=1000.0, busy_ms=None) for record in (first, second)]
    assert "takes the host 1.20 s, longer than its kernels" in said(long)
    waiting = [timed(record, host_ms=1200.0, median_ms=1000.0, busy_ms=995.0) for record in (first, second)]
    assert "longer than its kernels" not in said(waiting), "the device never waited for the host"
    few = [make_record(make_case(), "base", tflops=300.0, samples=5), make_record(make_case(), "other", tflops=290.0)]
    assert "too few samples of base for an interval" in said(few)
    assert "too few" not in said(group())


def test_heat_and_a_low_clock():
    hot = PowerSeries(at_s=(0.0, 0.1), watts=(600.0, 650.0), celsius=(None, 85.0))
    assert "the card reached 85 °C" in said(changed(group(), power_w=hot))
    assert "the card reached" not in said(group())
    slow = [timed(record, sm_mhz=(1500.0,) * record.time.num_samples) for record in group()]
    assert "the SM clock fell to 1500 of 1980 MHz" in said(slow)
    assert "SM clock" not in said(slow, dataclasses.replace(H200, sm_max_mhz=None))


def test_an_imported_time_with_few_statistics_says_nothing_false():
    bare = dict.fromkeys(("num_samples", "median_ms", "mean_ms", "min_ms", "max_ms", "p95_ms", "p99_ms"))
    time = Time(timer="imported", l2=None, regime=None, stopped_by=None, **(bare | {"median_ms": 1.0}))
    record = dataclasses.replace(make_record(make_case(), "base", tflops=300.0), time=time, rate=None, work=None)
    assert read_table(make_run([record]), [record]) == []


def test_a_sweep_counts_its_cases():
    records = [record for seqlen in (512, 1024, 2048) for record in group(other=720.0, seqlen=seqlen)]
    run = derive(make_run(records))
    assert "3 of 3 cases: a large gain over base (at least 2x)" in read_sweep(run, run.records)
    (block,) = arrange(run, most_blocks=1).blocks
    assert block.reading == read_sweep(run, run.records)


@pytest.mark.parametrize("odd", [0.5, 7, True, None, [1], [], "", "float64"])
def test_an_odd_value_on_an_axis_says_nothing(odd):
    """A file may say anything of a case; no rule takes a number for a word or falls over it."""
    for axis in ("dtype", "batch", "nheads", "seqlen"):
        records = make_group(make_case())
        records = [dataclasses.replace(item, case=item.case | {axis: odd}) for item in records]
        arrange(make_run(records))
