"""The docs cover everything in the live registries, so that a new entry cannot be forgotten."""

from __future__ import annotations

import importlib
import re

import pytest
from documents import GUIDES, ROOT, commands, inline, name

from attnbench.backends.registry import all_backends
from attnbench.cli import MODULES, VERBS
from attnbench.cli.parser import Parser
from attnbench.formats.exports import exporter_names
from attnbench.formats.layouts import layout_names
from attnbench.measure.timer import all_timers
from attnbench.pytest_plugin import pytest_addoption
from attnbench.suites.load import case_names, suite_names
from test_layers import MAY_IMPORT

README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = (ROOT / "docs/commands.md").read_text("utf-8")
BACKENDS = (ROOT / "docs/backends.md").read_text("utf-8")
MEASURING = (ROOT / "docs/measuring.md").read_text("utf-8")
CORRECTNESS = (ROOT / "docs/correctness.md").read_text("utf-8")
MIGRATING = (ROOT / "docs/migrating.md").read_text("utf-8")
EVERYTHING = "\n".join(path.read_text("utf-8") for path in GUIDES)

SHIPPED = [one for one, backend in all_backends().items() if type(backend).__module__.startswith("attnbench.")]


def mentions(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_a_row_in_the_readme(verb):
    assert f"| `attnbench {verb}` |" in README


@pytest.mark.parametrize("backend", SHIPPED)
def test_a_backend_has_a_row_in_backends(backend):
    assert f"| `{backend}` |" in BACKENDS, "run: .venv/bin/python benchmarks/tables.py --write"


def test_the_readme_is_short_and_begins_with_our_kernels():
    assert len(re.findall(r"\S*\w\S*", README)) <= 900
    assert README.index("begin: ours-h200") == README.index("begin: ")


@pytest.mark.parametrize("timer", all_timers())
def test_a_timer_has_a_row_in_measuring(timer):
    assert f"| `{timer}` |" in MEASURING


@pytest.mark.parametrize("one", [*suite_names(), *case_names()])
def test_a_suite_is_named_in_commands(one):
    assert f"`{one}`" in COMMANDS


@pytest.mark.parametrize("layout", layout_names())
def test_a_layout_is_named_in_migrating(layout):
    assert mentions(MIGRATING, layout)


@pytest.mark.parametrize("exporter", exporter_names())
def test_an_exporter_is_named_in_the_readme(exporter):
    assert mentions(README, f"--{exporter}") or mentions(README, {"md": "Markdown"}.get(exporter, exporter.upper()))


def flags() -> set[str]:
    found = set()
    for verb in VERBS:
        parser = Parser(verb, VERBS[verb])
        importlib.import_module(f"attnbench.cli.{MODULES.get(verb, verb)}").add_arguments(parser)
        found |= set(parser.flags())

    class Group:
        def getgroup(self, name):
            return self

        def addoption(self, flag, **options):
            found.add(flag)

    pytest_addoption(Group())
    return found


OTHERS = {
    "--d_heads",
    "--seq_lens",
    "--num_warmups",
    "--num_repeats",
    "--noncu",
    "--repeats",
    "--attention_type",
    "--model_path",
    "--runs",
    "--force-overwrite",
    "--batch_size",
    "--num_candidates",
    "--dataset_name",
    "--inference",  # the scripts of the seeds
    "--set",
    "--stats",
    "--kernel-name",
    "--report",
    "--details",
    "--pipeline-boost-state",  # of profilers
    "--write",
    "--check",
    "--out",
    "--groups",
    "--measure",  # of benchmarks/*.py
    "--num_heads",
    "--head_dim",
    "--seq_len",
    "--simthreshd1_values",
    "--cdfthreshd_values",
    "--pvthreshd_values",
    "--output_dir",  # of seed 003
    "--version",
    "--no-build-isolation",
    "--no-deps",
    "--durations",  # of pip and pytest
    "--shm-size",
    "--cap-add",
    "--ulimit",
    "--net",
    "--hostname",
    "--init",
    "--name",
    "--rm",
    "--user",
    "--workdir",
    "--volume",
    "--target",  # of docker
}


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_a_flag_of_the_docs_is_one(path):
    known = flags() | OTHERS
    named = {flag for code in inline(path.read_text("utf-8")) for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)}
    assert not named - known


def test_the_shape_flags_of_the_docs_are_told_from_mistakes():
    assert "--causal-both" in flags()
    assert "--seq-len" not in flags() | OTHERS


@pytest.mark.parametrize("variable", ["BATCH", "SEQLEN", "NHEADS", "HEADDIM", "ATTNBENCH_TIMERS"])
def test_an_environment_variable_is_explained(variable):
    assert f"`{variable}`" in EVERYTHING


# ── the seeds: every name they have, from their documents ──────────────────────────────────────────

SEED_001 = (
    "pt_bench.py",
    "ncu_bench.py",
    "run_kernels.py",
    "kernel_configs.py",
    "utils.py",
    "benchmark_autotune.sh",
    "benchmark_kernel",
    "parse_cmd_args",
    "BenchmarkStats",
    "calculate_benchmark_stats",
    "relative_performance",
    "set_clock_speed",
    "reset_clock_speed",
    "flush_cache",
    "run_shell_command",
    "generate_data",
    "QKVConfig",
    "reference_forward_kernel_v2_timed",
    "reference_forward_kernel_v3",
    "BATCH_SIZE_FOR_SEQ_LEN",
    "prettytable",
    "--d_heads",
    "--seq_lens",
    "--num_warmups",
    "--num_repeats",
    "--noncu",
    "Kernel Name,d_head,seq_len,Mean,Median,Min,Max,StdDev,Relative Performance,Attn TFLOP/s",
    "Reference",
    "V3",
    "1110, 1512",
    "1680, 9501",
    "16384",
)
SEED_002 = (
    "run_bench.sh",
    "run_bench_nsys.sh",
    "run_bench_ncu.sh",
    "process_data.ipynb",
    "preprocessor.py",
    "inference_benchmark.py",
    "--batch_size",
    "--num_candidates",
    "--dataset_name",
    "--inference",
    "p-logs/",
    "profiles/benchmark_bs8_nc1024.nsys-rep",
    "profiles-cu/benchmark_bs8_nc1024_embedding.ncu-rep",
    "gputrace",
    "KV_Cache_Preprocessing",
    "GR_forward",
    "KV Caches",
    "benchmark_results.xlsx",
    "Sheet1",
    "file",
    "batch_size",
    "num_candidate",
    "kv_caches",
    "candidate_embeddings",
    "total_time_ms",
)
SEED_004 = (
    "minimal_benchmark.py",
    "compare_implementations.py",
    "auto_profile.sh",
    "setup.py",
    "--batch",
    "--seqlen",
    "--nheads",
    "--headdim",
    "--causal",
    "--dtype",
    "--repeats",
    "--no-grad",
    "BATCH",
    "SEQLEN",
    "NHEADS",
    "HEADDIM",
    "MAX_JOBS",
    "Forward Pass Results:",
    "Time (min):",
    "Time (avg):",
    "TFLOPs/s (peak):",
    "TFLOPs/s (avg):",
    "Implementation",
    "Time (ms)",
    "Memory (MB)",
    "Speedup",
    "Fastest:",
    "Lowest Memory:",
    "Flash Attention",
    "PyTorch Standard",
    "PyTorch SDPA",
    "xFormers",
    "profile_results/",
    "SUMMARY.md",
    "baseline_benchmark.txt",
    "comparison_results.txt",
    "gpu_info.txt",
    "flash_attn_nsys.nsys-rep",
    "flash_attn_ncu_full.ncu-rep",
    "nsys_stats.txt",
    "ncu_memory_metrics.txt",
    "ncu_compute_metrics.txt",
    "results.json",
    "time_ms",
    "tflops",
    "memory_gb",
    "baseline.txt",
    "current.txt",
    "GPT-2 Small",
    "GPT-3 Large",
    "BERT-Base",
    "BERT-Large",
    "8K context",
    "16K context",
    "batch-inference",
    "nvidia-smi",
    "nvidia-smi -q -d CLOCK",
    "nvidia-smi -q -d PERFORMANCE",
    "watch -n 0.5 nvidia-smi",
    "nvtop",
    "-lgc 1410,1410",
    "-pm 1",
    "which nsys",
    "312",
    "150",
    "250",
    "90 %",
    "80 %",
    "70 %",
    "3x",
    "2x",
    "0.15x",
    "ncu --set full",
    "nsys profile",
)


@pytest.mark.parametrize("word", [*SEED_001, *SEED_002, *SEED_004])
def test_everything_a_seed_has_is_mapped(word):
    assert word in MIGRATING


def test_the_batches_of_the_sweep_are_those_of_the_suite():
    from attnbench.suites.load import load_suite

    batches = load_suite("flash-sweep", "cuda").batch_by_seqlen
    assert {length: batch for length, (batch,) in batches.items()} == {
        512: 16,
        1024: 16,
        2048: 16,
        4096: 16,
        8192: 8,
        16384: 4,
    }
    assert "batch 16 at lengths 512, 1024, 2048, 4096; 8 at 8192; 4 at 16384" in MIGRATING


@pytest.mark.parametrize(
    ("suite", "warmup", "iterations"),
    [("flash-sweep", 10, 64), ("minimal", 5, 30), ("compare", 5, 30), ("scenarios", 5, 30)],
)
def test_the_counts_of_the_seeds_are_those_of_the_suites(suite, warmup, iterations):
    from attnbench.suites.load import load_suite

    settings = load_suite(suite, "cuda").settings
    assert (settings["warmup"], settings["iterations"]) == (warmup, iterations)
    assert f"{warmup} + {iterations}" in MIGRATING


# ── what a failed record says ──────────────────────────────────────────────────────────────────────


PHRASES = (
    "wrong values: worst error",
    "times what rounding explains",
    "wrong values in a slice",
    "; matches",
    "NaN",
    "Inf",
    "never written",
    "elements, the first at",
    "cached answer: after new inputs the outputs are still those of the old ones",
    "changed inputs",
    "unfinished work",
    "elements changed after the launch's stream was done",
    "right before and wrong after timing",
    "is wrong; ",
    "missing from the outputs",
    "killed by",
    "ended the process with exit code",
    "no progress for",
    "out of device memory",
    "although alone",
    "of its memory",
    "global left changed",
    "grad mode",
)


@pytest.mark.parametrize("phrase", PHRASES)
def test_the_words_of_a_failure_are_those_of_the_program(phrase):
    source = "\n".join(
        path.read_text("utf-8")
        for room in ("check", "worker")
        for path in sorted((ROOT / "src/attnbench" / room).rglob("*.py"))
    )
    assert phrase in CORRECTNESS
    assert phrase in re.sub(r'"\s*f?"', "", source)


def test_every_status_is_explained():
    from attnbench.record import Status

    assert all(f"`{status.value}`" in CORRECTNESS for status in Status)


def test_the_map_of_rooms_is_the_one_the_layer_test_holds():
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rooms = {path.name for path in (ROOT / "src/attnbench").iterdir() if path.is_dir()} - {"__pycache__"}
    named = set(re.findall(r"^\| `(\w+)/", contributing, re.MULTILINE))
    assert rooms - named == set()
    assert "cli" in named
    allowed = dict(re.findall(r"^\| `(\w+)/[^|]*\|[^|]*\| ([^|]+) \|$", contributing, re.MULTILINE))
    for room, words in allowed.items():
        if room in MAY_IMPORT and "above" not in words:
            assert (set() if words == "nothing" else set(words.split(", "))) == MAY_IMPORT[room], room


def test_the_changelog_is_grouped_and_its_lines_are_short():
    group, lines = "", (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    for line in lines[lines.index("## Unreleased") :]:
        if line.startswith("#"):
            group = line
        elif line:
            assert line.startswith("- ") or group == "## Unreleased", f"neither a heading nor a bullet: {line}"
        if line.startswith("- "):
            assert group in ("### Added", "### Changed", "### Fixed"), f"under {group!r}: {line}"
            assert len(line[2:].split()) <= 25, line


def test_no_document_names_a_command_of_the_future_as_if_it_were_there():
    shown = {command.words[1] for path in GUIDES for command in commands(path)}
    assert not shown & {"profile", "tune", "diff", "history", "report", "data"} - set(VERBS)
