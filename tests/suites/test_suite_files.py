from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.errors import UsageError
from attnbench.record import Settings
from attnbench.suites import load
from attnbench.suites.load import case_names, load_suite, suite_names
from attnbench.suites.plan import expand
from attnbench.suites.settings import SETTINGS, parse_setting, settle
from attnbench.workloads.base import load_workload

GOOD = """
name = "mine"
title = "t"
workload = "attention"
backends = ["sdpa"]
baseline = "sdpa"
settings = { rel_ci = 0.05 }
axes = { seqlen = [63, 127], causal = [true] }
"""
AXES = "axes = { seqlen = [63, 127], causal = [true] }"


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


def cases(suite, asked=None):
    return expand(suite, load_workload(suite.workload), asked or {})


@pytest.mark.parametrize(("device", "count"), [("cpu", 1), ("cuda", 2)])
def test_a_function_selects_among_the_cases_of_the_suite(device, count):
    """Where a case leaves it open, a flag would set it: softmax cases would become cases of the other function."""
    found = cases(load_suite("attention-cp", device), {"function": ("hstu",)})
    assert len(found) == count
    assert all(name.startswith("w2-hstu-") for name in found)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", suite_names())
def test_a_shipped_suite_is_sound(name, device):
    suite = load_suite(name, device)
    assert suite.name == name
    assert suite.file is None
    assert cases(suite)


def test_the_shipped_suites_are_those_the_documents_name():
    assert suite_names() == [
        "attention-cp",
        "compare",
        "compare-attention-cp",
        "compare-hstu",
        "compare-hstu-serving",
        "compare-sparse",
        "compare-video",
        "decode",
        "flash",
        "flash-sweep",
        "hstu-bsa",
        "hstu-bsa-long",
        "hstu-dense",
        "hstu-serving",
        "hstu-serving-growth",
        "hstu-serving-pool",
        "hstu-serving-tiers",
        "minimal",
        "overhead",
        "paged",
        "quant",
        "quick",
        "scenarios",
        "serving-shapes",
        "serving-shapes-attention",
        "sparse",
        "sparse-length",
        "video",
    ]
    assert case_names() == [
        "gpt2-small",
        "gpt3-large",
        "bert-base",
        "bert-large",
        "context-8k",
        "context-16k",
        "batch-inference",
    ]


def test_names_of_suites_and_of_cases_do_not_meet():
    names = [*suite_names(), *case_names()]
    assert len(names) == len(set(names))


def test_a_named_case_is_a_suite_of_its_own():
    suite = load_suite("gpt3-large", "cuda")
    assert list(cases(suite)) == ["b2-s2048-h96-d128-fp16-causal-fwd"]
    assert (suite.name, suite.layout, suite.settings["warmup"], suite.settings["iterations"]) == (
        "gpt3-large",
        "seed-004",
        5,
        30,
    )


@pytest.mark.parametrize("name", ["sparse", "sparse-length"])
def test_the_suites_of_seed_003_have_its_shape_on_a_gpu(name):
    suite = load_suite(name, "cuda")
    shapes = {(case.batch, case.nheads, case.headdim, case.dtype) for case in cases(suite).values()}
    assert shapes == {(4, 32, 128, "fp16")}
    assert {case.causal for case in cases(suite).values()} == {False, True}
    assert max(case.seqlen for case in cases(suite).values()) == 32768
    small = cases(load_suite(name, "cpu")).values()
    assert max(case.batch * case.nheads * case.seqlen for case in small) <= 1024


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gpt2-small", (8, 1024, 12, 64, True)),
        ("gpt3-large", (2, 2048, 96, 128, True)),
        ("bert-base", (16, 512, 12, 64, False)),
        ("bert-large", (8, 512, 16, 64, False)),
        ("context-8k", (1, 8192, 8, 64, False)),
        ("context-16k", (1, 16384, 8, 64, False)),
        ("batch-inference", (32, 512, 8, 64, False)),
        ("minimal", (2, 1024, 8, 64, False)),
        ("compare", (2, 1024, 8, 64, False)),
    ],
)
def test_the_shapes_of_seed_004(name, shape):
    [case] = cases(load_suite(name, "cuda")).values()
    assert (case.batch, case.seqlen, case.nheads, case.headdim, case.causal) == shape
    assert case.dtype == "fp16"
    assert case.mode == "fwd"


def test_the_sweep_of_seed_001():
    suite = load_suite("flash-sweep", "cuda")
    shapes = [(case.seqlen, case.batch) for case in cases(suite).values() if case.dtype == "bf16"]
    assert shapes == [(512, 16), (1024, 16), (2048, 16), (4096, 16), (8192, 8), (16384, 4)]
    assert {case.nheads for case in cases(suite).values()} == {16}
    assert (suite.settings["warmup"], suite.settings["iterations"], suite.settings["l2"]) == (10, 64, "cold")


def test_the_flash_suite_has_ours_beside_the_references_at_as_many_tokens_and_columns_in_every_case():
    suite = load_suite("flash", "cuda")
    assert suite.backends == ("flash-triton", "sdpa-cudnn", "sdpa-flash", "fa3-fwd")
    found = cases(suite).values()
    assert {one.batch * one.seqlen for one in found} == {16384}
    assert {one.nheads * one.headdim for one in found} == {2048}
    assert {(one.headdim, one.causal) for one in found} == {
        (dim, causal) for dim in (64, 128, 256) for causal in (False, True)
    }


def test_the_configurations_of_seed_000():
    suite = load_suite("hstu-bsa", "cuda")
    found = [
        (one.batch, one.seqlen, one.nheads, one.attn_dim, one.linear_dim, one.block_size, one.block_counts)
        for one in cases(suite).values()
    ]
    assert found == [
        (1, 64, 4, 16, 32, 16, 2),
        (2, 128, 8, 32, 64, 32, 4),
        (4, 256, 8, 32, 64, 32, 4),
        (8, 512, 8, 32, 64, 32, 4),
        (16, 1024, 8, 32, 64, 32, 4),
    ]
    assert {(one.dtype, one.mode, one.lengths) for one in cases(suite).values()} == {("fp32", "fwd", "full")}
    assert (suite.layout, suite.settings) == ("seed-000", {"warmup": 10, "iterations": 100, "seed": 42})
    assert suite.backends == ("hstu-meta-triton", "hstu-triton", "hstu-bsa-triton", "hstu-eager")
    assert suite.baseline == "hstu-meta-triton|hstu-triton|hstu-eager"  # the original where it can run
    small = cases(load_suite("hstu-bsa", "cpu"))
    assert list(small) == list(cases(suite))[:3]


def test_the_long_suite_has_as_many_tokens_in_every_case():
    found = cases(load_suite("hstu-bsa-long", "cuda")).values()
    assert {one.batch * one.seqlen for one in found} == {524288}
    shapes = [(4, 128, 128), (8, 64, 64), (8, 32, 64)]
    assert [(one.nheads, one.attn_dim, one.linear_dim) for one in found] == shapes * 4
    assert {(one.block_size, one.block_counts, one.dtype) for one in found} == {(32, 4, "bf16")}


def test_the_rows_of_the_dense_suite():
    found = cases(load_suite("hstu-dense", "cuda")).values()
    assert [(one.nheads, one.attn_dim, one.seqlen, one.batch) for one in found] == [
        (4, 128, 256, 128),
        (4, 128, 512, 128),
        (4, 128, 1024, 128),
        (4, 128, 2048, 128),
        (4, 128, 4096, 128),
        (4, 128, 8192, 64),
        (4, 128, 16384, 32),
        (4, 256, 2048, 128),
        (4, 256, 8192, 64),
        (8, 64, 2048, 128),
        (8, 64, 8192, 64),
        (8, 32, 1024, 128),
        (8, 32, 8192, 64),
    ]
    assert {(one.dtype, one.causal, one.lengths) for one in found} == {("bf16", True, "full")}
    assert all(one.alpha == one.attn_dim**-0.5 and one.linear_dim == one.attn_dim for one in found)


def test_overhead_has_200_cases_of_comparable_work():
    found = cases(load_suite("overhead", "cuda"))
    assert len(found) == 200
    flops = [load_workload("attention").work(case).flops for case in found.values()]
    # 10 to 50 us at 100 to 300 TFLOP/s, or the floor of a launch.
    assert min(flops) > 0.2e9
    assert max(flops) < 16e9


def test_quick_on_a_cpu_samples_for_less_than_half_a_minute():
    suite = load_suite("quick", "cpu")
    assert len(cases(suite)) * suite.settings["max_seconds"] <= 25
    assert suite.backends == ("eager", "sdpa", "sdpa-math", "sdpa-flash")


def test_a_users_file_is_read(write):
    suite = load_suite(write(GOOD), "cpu")
    assert (suite.name, suite.file, suite.backends) == ("mine", "mine.toml", ("sdpa",))
    assert suite.settings == {"rel_ci": 0.05}
    assert [case.seqlen for case in cases(suite).values()] == [63, 127]


def test_a_file_without_a_name_or_a_title_is_called_as_it_lies_there(write):
    suite = load_suite(write(GOOD.replace('name = "mine"', "").replace('title = "t"', "")), "cpu")
    assert (suite.name, suite.title, str(suite.file)) == ("mine", "", "mine.toml")


def test_a_device_section_replaces_whole_keys(write):
    path = write(GOOD + "[cpu]\nbackends = ['eager']\n[cpu.axes]\nseqlen = [1]\n[cuda.settings]\nmax_seconds = 3\n")
    cpu, cuda = load_suite(path, "cpu"), load_suite(path, "cuda")
    assert (cpu.backends, dict(cpu.axes), dict(cpu.settings)) == (("eager",), {"seqlen": (1,)}, {"rel_ci": 0.05})
    assert (cuda.backends, cuda.axes["seqlen"], dict(cuda.settings)) == (("sdpa",), (63, 127), {"max_seconds": 3.0})


def test_cases_of_a_device_put_the_axes_aside(write):
    path = write(GOOD + "[batch_by_seqlen]\n63 = 2\n127 = [1, 3]\n[[cpu.cases]]\nbatch = 1\nseqlen = 65\n")
    assert [case.seqlen for case in cases(load_suite(path, "cpu")).values()] == [65]
    shapes = [(case.seqlen, case.batch) for case in cases(load_suite(path, "cuda")).values()]
    assert shapes == [(63, 2), (127, 1), (127, 3)]


@pytest.mark.parametrize(
    ("batches", "shapes"),
    [("63 = 2\notherwise = 3", [(63, 2), (127, 3)]), ("otherwise = [1, 2]", [(63, 1), (63, 2), (127, 1), (127, 2)])],
)
def test_a_length_outside_the_map_has_the_batch_otherwise(write, batches, shapes):
    suite = load_suite(write(f"{GOOD}[batch_by_seqlen]\n{batches}\n"), "cuda")
    assert [(case.seqlen, case.batch) for case in cases(suite).values()] == shapes
    assert {case.batch for case in cases(suite, {"batch": (5,)}).values()} == {5}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_quick_takes_any_length_and_the_sweep_only_its_own(device):
    found = cases(load_suite("quick", device), {"seqlen": (1, 63, 127, 1000)})
    assert {(case.seqlen, case.batch) for case in found.values()} == {(1, 1), (63, 1), (127, 1), (1000, 1)}
    batches = {case.seqlen: case.batch for case in cases(load_suite("quick", "cuda")).values()}
    assert batches == {512: 16, 4096: 4, 16384: 1}
    with pytest.raises(UsageError, match=r"suite flash-sweep: seqlen=63 has no batch size in its batch_by_seqlen; one"):
        cases(load_suite("flash-sweep", device), {"seqlen": (63,)})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mine"', 'nane = "mine"', r"nane='mine' is not a key; one of name, title, .*; did you mean name\?"),
        ('workload = "attention"', "", r"workload is missing; a text in quotes"),
        ('name = "mine"', "name = 3", r"name=3 cannot be used; a text in quotes"),
        ('"attention"', '"atention"', r"workload=atention is not known; one of attention.*; did you mean attention\?"),
        ("rel_ci = 0.05", "rel_cii = 0.05", r"settings\.rel_cii=0\.05 is not a key; one of warmup, .* mean rel_ci\?"),
        ("rel_ci = 0.05", 'rel_ci = "5"', r"settings\.rel_ci='5' cannot be used; a number above 0 and below 1"),
        ("rel_ci = 0.05", 'rel_ci = "0.5"', r"settings\.rel_ci='0\.5' cannot be used; a number without quotes"),
        ("rel_ci = 0.05", "rel_ci = true", r"settings\.rel_ci=True cannot be used; a number above 0"),
        ("rel_ci = 0.05", "rel_ci = nan", r"settings\.rel_ci=nan cannot be used; a number above 0"),
        ("rel_ci = 0.05", "iterations = 0", r"settings\.iterations=0 cannot be used; a whole number, at least 1"),
        ("rel_ci = 0.05", "iterations = 2.0", r"settings\.iterations=2\.0 cannot be used; a whole number"),
        ("rel_ci = 0.05", "warmup = 2", r"--warmup=2 has no count to go with"),
        ("rel_ci = 0.05", 'l2 = "hot"', r"settings\.l2='hot' is not known; one of auto, cold, warm"),
        ("rel_ci = 0.05", "lock_clocks = '1110'", r"settings\.lock_clocks='1110' is not a key"),
        ("rel_ci = 0.05", "device = 'cuda'", r"settings\.device='cuda' is not a key"),
        ("settings = { rel_ci = 0.05 }", "settings = 5", r"settings=5 cannot be used; a table"),
        ("[63, 127]", "63", r"axes\.seqlen=63 cannot be used; a list of values, in brackets"),
        ("[63, 127]", "[]", r"axes\.seqlen=\[\] cannot be used; a list"),
        ("[63, 127]", '["63"]', r"axes\.seqlen='63' cannot be used; a number without quotes"),
        ("[63, 127]", "[63.5]", r"axes\.seqlen=63\.5 cannot be used; a whole number from 1"),
        ("[63, 127]", "[-1]", r"axes\.seqlen=-1 cannot be used; a whole number from 1"),
        ("[63, 127]", "[[63]]", r"axes\.seqlen=\[63\] cannot be used"),
        ("causal = [true]", "causal = [1]", r"axes\.causal=1 cannot be used; true or false"),
        ("causal = [true]", 'dtype = ["fp8"]', r"axes\.dtype='fp8' is not known; one of fp32, fp16, bf16"),
        (
            "causal = [true]",
            "cause = [true]",
            r"axes\.cause=\[True\] is not a key; one of batch, .*did you mean causal\?",
        ),
        ('backends = ["sdpa"]', "backends = []", r'backends=\[\] cannot be used; a list of names .* or "all"'),
        ('backends = ["sdpa"]', 'backends = "sdpa"', r"backends='sdpa' cannot be used; a list of names"),
        ('baseline = "sdpa"', "baseline = 1", r"baseline=1 cannot be used; a text in quotes"),
        ('baseline = "sdpa"', "cpu = 1", r"cpu=1 cannot be used; a table"),
        ('baseline = "sdpa"', "cpu = { name = 'x' }", r"cpu\.name='x' is not a key; one of backends"),
        ('baseline = "sdpa"', "cpu = { axes = { seqlen = 5 } }", r"\[cpu\]: axes\.seqlen=5 cannot be used"),
        (
            'baseline = "sdpa"',
            "batch_by_seqlen = { long = 5 }",
            r"batch_by_seqlen\.long=5 cannot be used; the key is "
            r"otherwise, or a seqlen, a whole number",
        ),
        ('baseline = "sdpa"', "batch_by_seqlen = { otherwise = 0 }", r"batch_by_seqlen\.otherwise=0 cannot be used; a"),
        (
            'baseline = "sdpa"',
            "batch_by_seqlen = { otherwise = [] }",
            r"batch_by_seqlen\.otherwise=\[\] cannot be used",
        ),
        ('baseline = "sdpa"', "batch_by_seqlen = { otherwise = '1' }", r"otherwise='1' cannot be used; a number"),
        ('baseline = "sdpa"', "batch_by_seqlen = { 63 = 0 }", r"batch_by_seqlen\.63=0 cannot be used; a whole number"),
        ('baseline = "sdpa"', "env = { bacth = 'B' }", r"env\.bacth='B' is not a key; .*did you mean batch\?"),
        ('baseline = "sdpa"', "cases = []", r"axes and cases are both there; one of the two"),
        (AXES, "", r"axes and cases are both missing; one of the two"),
        (
            AXES,
            "cases = [{ seqlenk = 3 }]",
            r"cases\[0\]\.seqlenk=3 is not a key; one of name, batch, .*did you mean seqlen",
        ),
        (AXES, "cases = [{ seqlen = [3] }]", r"cases\[0\]\.seqlen=\[3\] cannot"),
        (AXES, "cases = [{ name = 'a' }, { name = 'a' }]", r"cases\[1\]\.name='a' cannot be used; a name once"),
        (AXES, "cases = 'all'", r"cases='all' cannot be used; a list of tables"),
        ("axes = {", "axes = {{", r"path=\S*mine\.toml is not TOML \(.*line 8.*\); a TOML file"),
    ],
)
def test_a_mistake_is_answered_in_one_line(write, old, new, message):
    assert old in GOOD
    with pytest.raises(UsageError, match=message) as caught:
        load_suite(write(GOOD.replace(old, new)), "cuda")
    assert str(caught.value).startswith("suite mine.toml")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_and_one_that_is_not_text(tmp_path):
    with pytest.raises(UsageError, match=r"suite no\.toml: path=\S+ is not there; a TOML file; shipped suites: "):
        load_suite(str(tmp_path / "no.toml"), "cpu")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"is not text in UTF-8"):
        load_suite(str(tmp_path / "bytes.toml"), "cpu")
    with pytest.raises(UsageError, match=r"path=.* is a folder; a TOML file"):
        load_suite(str(_folder(tmp_path / "dir.toml")), "cpu")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_an_unknown_suite_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match=r"suite=gpt2-smal is not known; one of .*; did you mean gpt2-small\?"):
        load_suite("gpt2-smal", "cpu")


def test_a_suite_is_never_executed(write):
    with pytest.raises(UsageError, match=r'axes\.seqlen="__import__'):
        load_suite(write(GOOD.replace("[63, 127]", "[\"__import__('os').abort()\"]")), "cpu")


def test_every_setting_is_a_field_of_the_record():
    fields = {field.name for field in dataclasses.fields(Settings)}
    assert {one.name for one in SETTINGS} == fields - {"check", "measure", "baseline"}
    for one in SETTINGS:
        if one.default is not None:
            assert one.parse(str(one.default)) == one.default


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("rel_ci", "0", "a number above 0 and below 1"),
        ("rel_ci", "1%", "a number"),
        ("rel_ci", "nan", "a number"),
        ("max_seconds", "inf", "a number above 0"),
        ("timeout", "-1", "a number above 0"),
        ("iterations", "1e3", "a whole"),
        ("iterations", "٣", "a whole"),
        ("lock_clocks", "1110,", r"SM\[,MEM\]"),
        ("device", "gpu", "auto, cpu, cuda"),
        ("input", "ones", "one of normal, uniform, zeros"),
        ("regime", "", "one of burst, sustained"),
    ],
)
def test_a_setting_refuses(name, text, accepted):
    with pytest.raises(
        UsageError, match=rf"attnbench: --{name.replace('_', '-')}=.* (cannot be used|is not known); {accepted}"
    ):
        parse_setting("attnbench", name, text)


@pytest.mark.parametrize(
    ("suite", "asked", "settled"),
    [
        ({}, {}, {}),
        ({"rel_ci": 0.02}, {"max_seconds": 3.0}, {"rel_ci": 0.02, "max_seconds": 3.0}),
        ({"warmup": 5, "iterations": 30}, {"iterations": 7}, {"warmup": 5, "iterations": 7}),
        ({"warmup": 5, "iterations": 30}, {"rel_ci": 0.02}, {"rel_ci": 0.02}),
        ({"rel_ci": 0.02}, {"iterations": 7}, {"rel_ci": 0.02, "iterations": 7, "warmup": 5}),
    ],
)
def test_counts_and_intervals_put_each_other_aside(suite, asked, settled):
    assert settle("x", suite, asked) == settled


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"iterations": 7, "rel_ci": 0.1}, "--iterations=7 fixes what --rel-ci is to find"),
        ({"warmup": 7}, "--warmup=7 has no count to go with; .*; add --iterations N"),
    ],
)
def test_counts_and_intervals_together_are_refused(asked, message):
    with pytest.raises(UsageError, match=message):
        settle("x", {}, asked)


def test_loading_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from attnbench.suites.load import load_suite\nprint(load_suite('quick', 'cpu').title)"
    )
    source = Path(load.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True)
    assert done.stdout.startswith("A first look"), done.stderr
