"""Common first attempts: flags of other programs, short flags, torch's names, a command without its argument."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from attnbench.cli import MODULES, VERBS
from attnbench.cli.elsewhere import HERE, here
from attnbench.cli.load import add_arguments, options_of
from attnbench.cli.parser import Parser
from attnbench.errors import nearest
from attnbench.workloads.base import load_workload, workload_names

SEEDS = {
    "--d_heads": "--headdim LIST",
    "--seq_lens": "--seqlen LIST",
    "--num_warmups": "--warmup N",
    "--num_repeats": "--iterations N",
    "--repeats": "--iterations N",
    "--noncu": "--l2 warm",
    "--batch_size": "--batch LIST",
    "--attention_type": "--backends NAMES",
}


def flags_of(verb):
    parser = Parser(verb, VERBS[verb])
    importlib.import_module(f"attnbench.cli.{MODULES.get(verb, verb)}").add_arguments(parser)
    return parser.flags()


def test_flags_of_the_scripts_before_name_ours():
    known = flags_of("run")
    assert {flag: here(flag, known) for flag in SEEDS} == SEEDS
    assert here("--kernel-name", flags_of("profile")) == "--kernel REGEX"
    assert here("--noncu", flags_of("check")) is None
    assert here("--num_gpus", known) == "--gpus all|LIST"
    assert here("--world_size", known) == "--world LIST"


def test_what_the_table_names_is_a_flag_and_no_flag_of_ours_is_in_it():
    known = {verb: flags_of(verb) for verb in VERBS}
    everywhere = {flag for flags in known.values() for flag in flags}
    for ours, theirs in HERE.items():
        assert ours.split()[0] in everywhere
        verbs = [verb for verb in known if ours.split()[0] in known[verb]]
        for name in theirs.split():
            assert any(f"--{name}" not in known[verb] for verb in verbs)
    names = [name for theirs in HERE.values() for name in theirs.split()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("value", "names", "near"),
    [
        ("--rep", ["--replicates", "--resume", "--rel-ci"], ["--replicates"]),
        ("--iter", ["--iterations", "--timer"], ["--iterations"]),
        ("sd", ["sdpa-math", "sdpa", "sdpa-cudnn", "sdpa-efficient"], ["sdpa", "sdpa-math", "sdpa-cudnn"]),
        ("spda", ["sdpa", "eager"], ["sdpa"]),
        ("seqlen_k", ["seqlen", "seqlen-k"], ["seqlen-k"]),
        ("SDPA", ["sdpa-math", "sdpa"], ["sdpa"]),
        ("x", ["xformers"], []),
        ("nothing", ["sdpa"], []),
    ],
)
def test_a_beginning_comes_before_what_looks_alike(value, names, near):
    assert nearest(value, names) == near


@pytest.mark.parametrize("workload", workload_names())
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("float16", "fp16"),
        ("bfloat16", "bf16"),
        ("float32", "fp32"),
        ("half", "fp16"),
        ("torch.bfloat16", "bf16"),
        ("fp16", "fp16"),
    ],
)
def test_names_of_precisions(workload, theirs, ours):
    axis = next(axis for axis in load_workload(workload).axes if axis.name == "dtype")
    assert axis.parse(theirs) == ours


@pytest.mark.parametrize("wrong", ["torch.", "float8", "double", "bfloat", ""])
def test_no_precision(wrong):
    axis = next(axis for axis in load_workload("attention").axes if axis.name == "dtype")
    with pytest.raises(ValueError, match="one of fp32, fp16, bf16"):
        axis.parse(wrong)


def test_precisions_on_the_command_line_and_in_a_suite(attnbench, sweep):
    attnbench("run quick --device cpu --dtype bfloat16,bf16,float32 --seqlen 64 --no-causal --quiet")
    assert {group.case["dtype"] for group in sweep.runs[0].plan} == {"bf16", "fp32"}
    Path("s.toml").write_text(
        'name = "s"\nworkload = "attention"\nbackends = ["eager"]\naxes = { dtype = ["float32"], seqlen = [8] }\n'
    )
    answer = attnbench("run s.toml --device cpu --quiet")
    assert (answer.code, answer.err) == (0, "")
    assert [group.case_id for group in sweep.runs[1].plan] == ["b2-s8-h8-d64-fp32-fwd"]


def test_short_flags(attnbench, sweep):
    words = "run quick --device cpu --seqlen 64 --no-causal --backends eager,sdpa"
    quiet = attnbench(f"{words} -q -o elsewhere")
    [path] = Path("elsewhere").glob("*.json")
    assert (quiet.out, quiet.err) == (f"{path}\n", "")
    assert attnbench(f"{words} -qo other").out.startswith("other/")
    assert not Path("results").exists()


def test_verbose_tells_how_each_row_ended(attnbench, monkeypatch):
    import attnbench.sweep.run as sweep
    from attnbench.record import Record, Status

    def execute(run, *, path=None, backend_files=(), on_event, executors, jobs):
        for name, status, reason in (("eager", Status.PASSED, None), ("sdpa", Status.SKIPPED, "not today")):
            record = Record(
                workload="attention",
                case={},
                case_id="c",
                group="c",
                backend=name,
                status=status,
                reason=reason,
                notes=("a note",),
            )
            on_event(sweep.Event("record", record=record))
        return run

    monkeypatch.setattr(sweep, "execute", execute)
    words = "run quick --device cpu --seqlen 64 --no-causal --backends eager,sdpa --no-save"
    said = ["c eager: passed; a note", "c sdpa: skipped; not today; a note"]
    assert attnbench(f"{words} -v").err.splitlines()[:2] == said
    assert attnbench(f"{words} --verbose -q").err.splitlines()[:2] == said
    assert "a note" not in attnbench(words).err


def test_list_alone_lists_what_can_be_listed(attnbench, no_torch):
    answer = attnbench("list")
    assert (answer.code, answer.err) == (0, "")
    names = [row["list"] for row in json.loads(attnbench("list --json -").out)]
    assert names == [
        f"attnbench list {name}" for name in ("backends", "configs", "suites", "workloads", "timers", "layouts")
    ]
    assert all(name in answer.out for name in names)


def test_a_load_takes_torchs_names_of_precisions_too():
    parser = Parser("load", "serve")
    add_arguments(parser)
    words = "hstu-serving --config tiny --device cpu --dtype torch.float32"
    assert options_of(parser.read(words.split())).dtype == "fp32"
