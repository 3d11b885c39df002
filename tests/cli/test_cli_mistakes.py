"""A wrong request is answered in one line, before anything is measured or written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from attnbench.formats.layouts.seed_001 import COLUMNS
from attnbench.store.runfile import SCHEMA

MISTAKES = [
    ("minimal", 2, r"attnbench: command=minimal is a suite; one of run, .*; attnbench run minimal"),
    ("gpt2-small", 2, r"attnbench: command=gpt2-small is a suite; .*; attnbench run gpt2-small"),
    ("rnu", 2, r"attnbench: command=rnu is not known; one of .*run, show, tune; did you mean run\?"),
    ("--seqlen 3", 2, r"attnbench: flag=--seqlen is not known here; --help, --version, or a command first: run, .*"),
    ("run qick", 2, r"attnbench: suite=qick is not known; one of .*; did you mean quick\?"),
    ("run a b", 2, r"attnbench run: argument=b is one too many; see `attnbench run --help`"),
    ("run --sqlen 3", 2, r"attnbench run: flag=--sqlen is not known; see `.* --help-all`; did you mean --seqlen\?"),
    ("run --seq 3", 2, r"attnbench run: flag=--seq is not known; .*; did you mean --seqlen or --seqlen-k\?"),
    ("run --rep 3", 2, r"attnbench run: flag=--rep is not known; .*; did you mean --replicates\?"),
    ("run --iter 3", 2, r"attnbench run: flag=--iter is not known; .*; did you mean --iterations\?"),
    ("run --head_dim 3", 2, r"attnbench run: flag=--head_dim is not known; .*; did you mean --headdim LIST\?"),
    ("run --max_seconds=3", 2, r"attnbench run: flag=--max_seconds is not known; .*; did you mean --max-seconds\?"),
    ("run --zzz", 2, r"attnbench run: flag=--zzz is not known; see `attnbench run --help-all`"),
    ("diff a b --zzz", 2, r"attnbench diff: flag=--zzz is not known; see `attnbench diff --help`"),
    ("run -x", 2, r"attnbench run: flag=-x is not known; see `attnbench run --help-all`"),
    ("run --repeats 3", 2, r"attnbench run: flag=--repeats is not known; .*; did you mean --iterations N\?"),
    ("run --num_repeats=64", 2, r"attnbench run: flag=--num_repeats is not known; .*; did you mean --iterations N\?"),
    ("run --num_warmups 3", 2, r"attnbench run: flag=--num_warmups is not known; .*; did you mean --warmup N\?"),
    ("run --d_heads 64,128", 2, r"attnbench run: flag=--d_heads is not known; .*; did you mean --headdim LIST\?"),
    ("run --seq_lens 512", 2, r"attnbench run: flag=--seq_lens is not known; .*; did you mean --seqlen LIST\?"),
    ("show --layout seed-001", 2, r"attnbench show: flag=--layout is not known; .*; it is a flag of .*export.*"),
    ("run --fail-over 3", 2, r"attnbench run: flag=--fail-over is not known; .*; it is a flag of diff"),
    ("run --noncu", 2, r"attnbench run: flag=--noncu is not known; .*; did you mean --l2 warm\?"),
    ("profile ncu --noncu", 2, r"attnbench profile: flag=--noncu is not known; see `attnbench profile --help-all`.*"),
    ("check --repeats 3", 2, r"attnbench check: flag=--repeats is not known; see `attnbench check --help-all`"),
    ("run -o", 2, r"attnbench run: --out='' has no value; a value, --out DIR"),
    ("run -o --csv", 2, r"attnbench run: --out=--csv starts like a flag, so it is no value; a value, --out DIR"),
    ("run hstu-bsa --headdim 64", 2, r"attnbench run: axis=headdim is not known; .*; did you mean --attn-dim\?"),
    ("compare --workload hstu --headdim-v 64", 2, r"attnbench compare: axis=headdim_v .*; did you mean --linear-dim\?"),
    ("run quick --attn-dim 64", 2, r"attnbench run: axis=attn_dim is not known; .*; did you mean --headdim\?"),
    ("tune hstu-triton --headdim 64", 2, r"attnbench tune: axis=headdim is not known; .*; did you mean --attn-dim\?"),
    ("list configs hstu-triton --headdim 64", 2, r"attnbench list: axis=headdim .*; did you mean --attn-dim\?"),
    ("run ./headdim.toml", 2, r"suite headdim\.toml: axes\.headdim=\[3\] is not a key; .*; did you mean attn_dim\?"),
    ("run --seqlen", 2, r"attnbench run: --seqlen='' has no value; a value, --seqlen LIST"),
    ("run --json --csv x", 2, r"attnbench run: --json=--csv starts like a flag, so it is no value; .*PATH"),
    ("export x --csv=--", 2, r"attnbench export: --csv=-- starts like a flag, so it is no value; .*PATH"),
    ("run --backends=--", 2, r"attnbench run: --backends=-- starts like a flag, so it is no value; .*FILE\.py"),
    ("run --json=--csv", 2, r"attnbench run: --json=--csv starts like a flag, so it is no value; .*PATH"),
    ("run --skip=--csv", 2, r"attnbench run: --skip=--csv starts like a flag, .*"),
    ("run --json=", 2, r"attnbench run: --json='' is empty; a value, --json PATH"),
    ("run --out=", 2, r"attnbench run: --out='' is empty; a value, --out DIR"),
    ("run --backends= --device cpu", 2, r"attnbench run: --backends='' is empty; a value, --backends NAMES\|FILE\.py"),
    ("run --backends ,", 2, r"attnbench: --backends=, names nothing; see `attnbench list backends`"),
    ("run --skip ,", 2, r"attnbench: --skip=, names nothing; see `attnbench list backends`"),
    ("run --json a --csv ./a", 2, r"attnbench run: --json=a is where --csv goes; a file of its own each"),
    ("run --json - --csv -", 2, r"attnbench run: --json=- wants stdout, as --csv does; one of them; give .*file name"),
    ("run --xlsx -", 2, r"export: xlsx=- is a binary format; a file name"),
    ("run --causal=yes", 2, r"attnbench run: --causal=yes takes no value; alone"),
    ("run --causal --no-causal", 2, r"attnbench run: --no-causal contradicts .*; one of --causal, .*-both"),
    ("run --no-grad --mode bwd", 2, r"attnbench run: --mode=bwd contradicts --no-grad; one of the two"),
    ("run --seqlen 12,x", 2, r"attnbench run: --seqlen=x cannot be used; a whole number from 1.*"),
    ("run --seqlen 0", 2, r"attnbench run: --seqlen=0 cannot be used; a whole number from 1.*"),
    ("run --dtype fp8", 2, r"attnbench run: --dtype=fp8 is not known; one of fp32, fp16, bf16"),
    (
        "compare --dtype bf17",
        2,
        r"attnbench compare: --dtype=bf17 is not known; one of fp32, fp16, bf16; did you mean bf16\?",
    ),
    (
        "compare --regime busrt",
        2,
        r"attnbench compare: --regime=busrt is not known; one of burst, sustained; did you mean burst\?",
    ),
    ("run /", 2, r"attnbench: suite=/ is a folder; a suite's name, or a file ending in \.toml"),
    ("run --nheads 8 --nheads-kv 3", 2, r"attention: nheads_kv=3 does not divide nheads=8; a divisor of nheads"),
    ("run --rel-ci 2", 2, r"attnbench run: --rel-ci=2 cannot be used; a number above 0 and below 1"),
    ("run --iterations 5 --rel-ci 0.1", 2, r"attnbench: --iterations=5 fixes what --rel-ci is to find; either .*"),
    ("run --warmup 5", 2, r"attnbench: --warmup=5 has no count to go with; .*; add --iterations N"),
    ("run --lock-clocks fast", 2, r"attnbench run: --lock-clocks=fast cannot be used; SM\[,MEM\] in MHz.*"),
    (
        "run --device cuda:0,1",
        2,
        r"attnbench run: --device=cuda:0,1 cannot be used; .*; several GPUs by --gpus of run.*",
    ),
    ("run --device gpu", 2, r"attnbench run: --device=gpu cannot be used; auto, cpu, cuda or cuda:N; several GPUs.*"),
    ("run --gpus 0,0", 2, r"attnbench run: --gpus=0,0 names GPU 0 twice; each once"),
    ("check --gpus 0,00", 2, r"attnbench check: --gpus=0,00 names GPU 0 twice; each once"),
    ("run --gpus 0,", 2, r"attnbench run: --gpus=0, names no GPU by nothing; all, or numbers of GPUs .*"),
    ("run --gpus cuda:0", 2, r"attnbench run: --gpus=cuda:0 names no GPU by cuda:0; all, or numbers of GPUs .*"),
    (
        "run --gpus 99",
        3,
        r"attnbench run: --gpus=99 (names GPU 99, which is not there|is for GPUs, and there is none); .*",
    ),
    ("run --gpus 0 --device cuda:0", 2, r"attnbench run: --device=cuda:0 does not go with --gpus; one of the two"),
    ("compare --gpus 0", 2, r"attnbench compare: flag=--gpus is not known; .*"),
    ("run --jobs many", 2, r"attnbench run: --jobs=many cannot be used; a whole number, at least 0"),
    ("check --jobs -1", 2, r"attnbench check: --jobs=-1 cannot be used; a whole number, at least 0"),
    ("run --seed 1.5", 2, r"attnbench run: --seed=1\.5 cannot be used; a whole number, at least 0"),
    ("run --seed 9223372036854775808", 2, r"attnbench run: --seed=9223372036854775808 cannot be used; 0 to 9{18}"),
    ("data kuairand-1k --seed " + "9" * 5000, 2, r"attnbench data: --seed=9+(\.{3}|…)?9* cannot be used; 0 to 9{18}"),
    ("load hstu-serving --seed " + "9" * 19, 2, r"attnbench load: --seed=9{19} cannot be used; 0 to 1000000000"),
    ("run --engine slurm", 2, r"attnbench run: --engine=slurm is not known; one of local, ray"),
    ("run --engine ray", 2, r"attnbench run: --engine=ray has no cluster; --address HOST:PORT beside it"),
    ("run --address a:1", 2, r"attnbench run: --address=a:1 is of a Ray cluster; beside --engine ray"),
    ("run --gpus 0 --engine ray --address a:1", 2, r"attnbench run: --gpus=0 does not go with --engine ray; .*"),
    ("run --shard 3/2", 2, r"attnbench run: --shard=3/2 is no shard; I/N, such as 2/5: the second of five"),
    ("merge here.json", 2, r"attnbench merge: RUN=here.json is not there; .*"),
    ("run --device cuda:99", 3, r"device: device=cuda:99 is not there; .*"),
    ("run --timer stopwatch", 2, r"attnbench: --timer=stopwatch is not known; one of all, auto, .*wall"),
    ("run --device cpu --timer cupti", 3, r"attnbench: --timer=cupti does not work on cpu; it works on cuda"),
    ("run --device cpu --l2 cold", 3, r"attnbench: --l2=cold is for GPUs; --l2 warm or auto on a CPU"),
    ("run --device cpu --lock-clocks 1110", 3, r"attnbench: --lock-clocks=1110 is for GPUs; leave it out on a CPU"),
    ("run --replicates 999999999", 2, r"attnbench: --replicates=9{9} times 8 cases are too many .*; at most 10000"),
    (
        "run --seqlen " + ",".join(map(str, range(1, 201))) + " --seqlen-k " + ",".join(map(str, range(1, 201))),
        2,
        r"suite quick: cases=more than 10000 are too many for one run; at most 10000; fewer values on an axis",
    ),
    ("run --backends eager[x]", 2, r"backends: name=eager\[x\] asks for a configuration; eager has none"),
    ("run --backends ./exits.py", 2, r"backends: file=\./exits\.py does not import: it ended .* code 7; a .*"),
    ("list backends --backends ./exits.py", 2, r"backends: file=\./exits\.py does not import: it ended .* code 7; .*"),
    ("run --backends spda", 2, r"backends: name=spda is not known; one of .*; did you mean sdpa\?"),
    ("run --backends nope-*", 2, r"backends: name=nope-\* matches no backend; one of .*"),
    (
        "run --backends ./no.py",
        2,
        r"backends: file=\./no\.py is not there; a Python file with a function attention, or a Backend",
    ),
    ("run --backends ./folder", 2, r"backends: file=\./folder is a folder; a Python file with a function .*"),
    ("run --backends ./file.txt", 2, r"backends: file=\./file\.txt does not end in \.py; a Python file with .*"),
    ("run --backends ./broken.py", 2, r"backends: file=\./broken\.py does not import: line 2: ZeroDivisionError.*"),
    ("run --skip spda", 2, r"backends: skip=spda is not known; .*"),
    ("run --device cpu --skip all", 3, r"suite quick: backends=.* leaves nothing to run on cpu; see .*"),
    ("run --baseline spda", 2, r"backends: baseline=spda is not known; .*did you mean sdpa\?"),
    ("run flash-sweep --seqlen 600", 2, r"suite flash-sweep: seqlen=600 has no batch size .*; one of 512, .*--batch"),
    ("run gpt2-small --seqlen 7", 2, r"suite gpt2-small: seqlen=7 selects none of its cases; one of 1024; .*"),
    (
        "run ./no.toml",
        2,
        r"suite no\.toml: path=no\.toml is not there; a TOML file; shipped suites: attention-cp, compare, compare-.*",
    ),
    ("run ./typo.toml", 2, r"suite typo\.toml: titel='t' is not a key; one of name, title, .*; did you mean title\?"),
    ("run ./deep.toml", 2, r"suite deep\.toml: path=deep\.toml is nested too deeply; a TOML file of a few levels"),
    ("run ./dotted.toml", 2, r"suite dotted\.toml: a=\{.{1,60} is not a key; one of name, .*"),
    ("run ./long.toml", 2, r"suite long\.toml: path=long\.toml cannot be read \(Exceeds the limit .*\); a TOML file"),
    ("run ./pipe.toml", 2, r"suite pipe\.toml: path=pipe\.toml cannot be read \(not a regular file\); a TOML file"),
    ("run ./loop.toml", 2, r"suite loop\.toml: path=loop\.toml cannot be read \(Too many levels .*\); a TOML file"),
    ("run ./folder.toml", 2, r"suite folder\.toml: path=folder\.toml is a folder; a TOML file"),
    ("run ./timer.toml", 2, r"attnbench: --timer=foo is not known; one of .*"),
    ("run ./layout.toml", 2, r"suite s: layout=seed-oo1 is not known; one of .*; did you mean seed-001\?"),
    ("run --csv ./locked.csv", 2, r"output: path=locked\.csv cannot be written \(Permission denied\); a file .*"),
    ("run --csv ./folder", 2, r"output: path=folder cannot be written \(Is a directory\); a file .*"),
    ("run --csv ./file.txt/rows.csv", 2, r"output: path=file.txt/rows.csv cannot be written \(.*\); .*"),
    ("run --out ./file.txt", 2, r"output: path=file.txt/\S+ cannot be written \(.*\); .*"),
    ("run --resume nope", 2, r"attnbench run: RUN=nope is not there; a run file, or the id of one in results"),
    ("run --resume ./folder", 2, r"attnbench run: RUN=\./folder is a folder; a run file, or the id of one in results"),
    ("run --resume /dev/null", 2, r"attnbench run: RUN=/dev/null is a pipe or a device; a run file, or the id .*"),
    ("run --resume ./cut.json", 2, r"cut\.json: line=.* is cut short; a run file written by attnbench run"),
    ("run --resume ./newer.json", 2, r"newer\.json: schema=99 is newer than this attnbench reads; .* upgrade .*"),
    ("run quick --resume ./cut.json", 2, r"attnbench run: --resume=\./cut\.json takes the plan .*, not SUITE; .*"),
    ("run --resume ./cut.json --seqlen 3", 2, r"attnbench run: --resume=.* not --seqlen; .*; leave out --seqlen"),
    ("compare --seqlen 1,2", 2, r"attnbench compare: shape=b2-s1-\S+, b2-s2-\S+ are 2 cases; one value .*"),
    ("compare quick", 2, r"attnbench compare: argument=quick is one too many; see `attnbench compare --help`"),
    ("check --rel-ci 0.1", 2, r"attnbench check: flag=--rel-ci is not known; .*"),
    ("check --baseline sdpa", 2, r"attnbench check: flag=--baseline is not known; .*"),
    ("list --backends sdpa", 2, r"attnbench list: --backends=sdpa does not narrow the list of lists; .*"),
    ("list backend", 2, r"attnbench list: WHAT=backend is not known; one of backends, .*; did you mean backends\?"),
    ("list suites --backends sdpa", 2, r"attnbench list: --backends=sdpa does not narrow the list of suites; .*"),
    (
        "export",
        2,
        r"attnbench export: RUN is missing, as in `attnbench export latest --csv .*`; see `attnbench export --help`",
    ),
    (
        "report",
        2,
        r"attnbench report: RUN\.\.\. is missing, as in `attnbench report latest`; see `attnbench report --help`",
    ),
    (
        "diff",
        2,
        r"attnbench diff: A, B are missing, as in `attnbench diff previous latest`; see `attnbench diff --help`",
    ),
    ("export ./cut.json", 2, r"attnbench export: there is no output; --csv PATH, .*, or --layout NAME \[--to PATH\]"),
    ("export ./cut.json --csv x --to y", 2, r"attnbench export: --to goes with --layout; .*"),
    ("export nope --csv x", 2, r"attnbench export: RUN=nope is not there; .*"),
    ("export ./cut.json --csv x", 2, r"cut\.json: .* is cut short; .*"),
    ("export ./newer.json --csv x", 2, r"newer\.json: schema=99 is newer than this attnbench reads; .*"),
    (
        "run hstu-serving --layout seed-003 --device cpu",
        2,
        r"attnbench run: --layout=seed-003 has no place for the workload hstu-serving; a suite of sparse or attention",
    ),
    (
        "run sparse --layout seed-002 --device cpu --dry-run",
        2,
        r"attnbench run: --layout=seed-002 has no place for the workload sparse; a suite of hstu-serving",
    ),
    ("export ./cut.json --layout seed-9", 2, r"layout: name=seed-9 is not known; one of seed-000, .*"),
    ("export ./cut.json --layout seed-001 --by dtype", 2, r"attnbench export: --by=dtype does not go with --layout .*"),
    ("export ./cut.json --layout seed-001 --csv a --to b", 2, r"attnbench export: --layout=seed-001 has one place.*"),
    ("export ./cut.json --layout seed-001 --xlsx a.xlsx", 2, r"attnbench export: --layout=.* is no xlsx; --to PATH"),
    ("import", 2, r"attnbench import: PATH is missing, as in `attnbench import sweep.csv`; .*"),
    ("import ./wide.csv", 2, r"\S*wide\.csv: line=2 cannot be read \(field larger than .*\); 10 fields"),
    ("import ./nope.csv", 2, r"import: path=nope\.csv is not there; .*"),
    ("import ./file.txt", 2, r"import: path=\S*file\.txt is of no known layout; a file of layout seed-000, .*"),
    (
        "run hstu-bsa --block-size 48",
        2,
        r"suite hstu-bsa: block_size=48 selects none of its cases; one of 16, 32; `attnbench compare --workload hstu` .*",
    ),
    ("check hstu-bsa-long --block-size 48", 2, r"hstu: block_size=48 is no power of two; a power of two such as 32"),
    ("check hstu-bsa-long --block-counts 64", 2, r"hstu: block_counts=64 is over the 8 blocks of 32 in seqlen=256; .*"),
    ("check hstu-bsa-long --num-targets 2000", 2, r"hstu: num_targets=2000 is over the 256 rows that seqlen=256 .*"),
    ("check hstu-bsa-long --batch 2 --lengths 300:1", 2, r"hstu: lengths=300:1 has 300 out of range; from 0 to .*"),
    (
        "check hstu-bsa-long --batch 2 --lengths 9:1 --num-targets 1:2",
        2,
        r"hstu: num_targets=1:2 gives sequence 1 2 targets and a length of 1; at most as many targets as .*",
    ),
    ("check hstu-bsa-long --pairs --block-size 1", 2, r"hstu: block_size=1 parts an item from its action .*"),
    ("check hstu-dense --max-attn-len 0", 2, r"attnbench check: --max-attn-len=0 cannot be used; none, or a whole .*"),
    ("run hstu-bsa --backends sdpa", 2, r"backends: name=sdpa computes attention; a backend of hstu: .*"),
    ("import ./file.txt --layout seed-7", 2, r"layout: name=seed-7 is not known; .*"),
]


@pytest.fixture
def folder(attnbench, monkeypatch):
    """Files that a mistake can be made with; the command runs among them."""
    Path("exits.py").write_text("import os\nos._exit(7)\n")
    Path("deep.toml").write_text("a = " + "[" * 3000)
    Path("dotted.toml").write_text("a." * 3000 + "b = 1")
    Path("long.toml").write_text("a = " + "9" * 5000)
    Path("timer.toml").write_text(
        'name = "s"\ntitle = "t"\nworkload = "attention"\naxes = { seqlen = [1] }\nsettings = { timer = "foo" }\n'
    )
    Path("headdim.toml").write_text('name = "s"\nworkload = "hstu"\naxes = { headdim = [3] }\n')
    Path("loop.toml").symlink_to("loop.toml")
    os.mkfifo("pipe.toml")
    Path("folder.toml").mkdir()
    Path("wide.csv").write_text(f"{','.join(COLUMNS)}\n{'x' * 200_000}\n")
    Path("locked.csv").write_text("kept")
    real = os.access  # whoever runs the tests as root may write everything
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked.csv" and real(path, mode))
    Path("folder").mkdir()
    Path("file.txt").write_text("nothing\n")
    Path("broken.py").write_text("x = 1\nx / 0\n")
    Path("typo.toml").write_text('name = "s"\ntitel = "t"\nworkload = "attention"\naxes = { seqlen = [1] }\n')
    Path("layout.toml").write_text(
        'name = "s"\ntitle = "t"\nworkload = "attention"\naxes = { seqlen = [1] }\n'
        'backends = ["sdpa"]\nlayout = "seed-oo1"\n'
    )
    Path("cut.json").write_text('{"schema": 1, "run": {')
    Path("newer.json").write_text(json.dumps({"schema": SCHEMA + 98, "run": {}, "records": []}))
    return {path.name for path in Path().iterdir()}


@pytest.mark.parametrize(
    "path", ["9" * 400, "~nobody-of-that-name/x", "a\x01b"], ids=["too long", "no home", "control"]
)
@pytest.mark.parametrize(
    "words",
    [
        "run hstu-serving --dry-run --device cpu --checkpoint",
        "run video --dry-run --device cpu --weights",
        "run sparse --dry-run --device cpu --pattern",
        "compare --dry-run --device cpu --seqlen 64 --input",
        "compare --dry-run --device cpu --seqlen 64 --backends",
        "check hstu-dense --device cpu --path",
        "run --dry-run --device cpu",
        "show",
        "diff latest",
        "import",
    ],
)
def test_a_path_that_cannot_be_is_answered_in_one_line(attnbench, folder, sweep, words, path):
    answer = attnbench([*words.split(), path])
    assert answer.code == 2
    assert re.fullmatch(r"\S.*; .*\n", answer.err), answer.err
    assert answer.out == ""
    assert sweep.runs == []


@pytest.mark.parametrize(("words", "code", "line"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_a_mistake_is_answered_in_one_line(attnbench, folder, sweep, words, code, line):
    if words.startswith(("run", "compare", "check")) and not {"--device", "--gpus"} & {*words.split()}:
        verb, *rest = words.split()
        words = [verb, *([] if "--resume" in words else ["--device", "cpu"]), *rest]
    answer = attnbench(words)
    assert re.fullmatch(line, answer.err.removesuffix("\n")), answer.err
    assert answer.code == code
    assert answer.out == ""
    assert sweep.runs == []
    assert {path.name for path in Path().iterdir()} - {"__pycache__"} == folder


def test_environment_variables_are_read_where_the_suite_says_so(attnbench, sweep, monkeypatch):
    monkeypatch.setenv("SEQLEN", "wide")
    answer = attnbench("compare --device cpu")
    assert (answer.code, sweep.runs) == (2, [])
    assert answer.err == (
        "suite compare: environment variable SEQLEN=wide cannot be used; a whole number from 1 to 16777216\n"
    )
    assert attnbench("run quick --device cpu --seqlen 7 --quiet").code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["run", "quick\x00.toml"],
        ["run", "a" * 5000 + ".toml"],
        ["run", "--resume", "a" * 5000],
        ["export", "\x00", "--csv", "x"],
        ["run", ""],
        [""],
        ["run", "--out", "a" * 5000],
    ],
)
def test_a_name_that_no_file_can_have_is_no_traceback(attnbench, sweep, words):
    answer = attnbench(words)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert sweep.runs == []


def test_a_path_that_is_no_checkout(attnbench, tmp_path):
    found = attnbench(["run", "quick", "--path", str(tmp_path)])
    assert found.code == 2
    assert found.err.startswith(f"attnbench run: --path={tmp_path} is no checkout that a backend looks for; ")
    assert len(found.err.splitlines()) == 1


LONG = "x" * 300


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("history --add", r"run file: path=x{300} cannot be read \(File name too long\); a run file written by .*"),
        ("import", "import: path=x{300} is not there; a file of a seed's layout"),
        ("diff run.json", "attnbench diff: RUN=run.json is not there; a run file, or the id of one in results"),
        ("export --csv -", "attnbench export: RUN=x{300} is not there; a run file, or the id of one in results"),
    ],
    ids=["history", "import", "diff", "export"],
)
def test_a_name_that_no_file_can_have_is_not_there(attnbench, words, line):
    answer = attnbench([*words.split(), LONG])
    assert answer.code
    assert re.fullmatch(line, answer.err.rstrip("\n")) is not None


def test_a_pipe_is_no_run_file_and_is_named(attnbench, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words in (["show", str(pipe)], ["diff", str(pipe), str(pipe)], ["export", str(pipe), "--csv", "-"]):
        answer = attnbench(words)
        assert answer.code == 2
        assert f"RUN={pipe} is a pipe or a device; a run file, or the id of one in results" in answer.err


MEASURING = ("run quick", "check quick", "compare", "tune flash-triton", "profile torch quick", "load hstu-serving")
SAME = {
    "an unknown precision": (MEASURING, "--dtype bf17", "--dtype=bf17 is not known; one of fp32, fp16, bf16; .*"),
    "a device that is none": (
        (*MEASURING, "doctor"),
        "--device gpu",
        "--device=gpu cannot be used; auto, cpu, cuda or cuda:N; several GPUs by --gpus of run and check",
    ),
    "a list of nothing": (MEASURING[:-1], "--dtype ,", "--dtype=, names nothing; values with commas between"),
    "a list of no rates": (MEASURING[-1:], "--rate ,", "--rate=, names nothing; values with commas between"),
    "a list of no GPUs": (("run", "check", "links"), "--gpus ,", "--gpus=, names nothing; all, or numbers of GPUs .*"),
    "a negative number": (
        (*MEASURING, "data kuairand-1k"),
        "--seed -1",
        "--seed=-1 cannot be used; a whole number, at least 0",
    ),
    "a file in Latin-1": (
        ("show", "report", "export --csv -", "explain", "merge", "diff latin.json", "run --resume"),
        "latin.json",
        "path=latin.json is not text in UTF-8; a run file written by attnbench run",
    ),
    "a suite in Latin-1": (
        ("run", "check", "profile torch"),
        "latin.toml",
        "path=latin.toml is not text in UTF-8; a TOML file",
    ),
    "no such file": (
        ("show", "report", "export --csv -", "explain", "merge", "diff gone.json", "run --resume"),
        "gone.json",
        "RUN=gone.json is not there; a run file, or the id of one in results",
    ),
    "a file of another program": (
        ("import", "profile --from"),
        "gone.json",
        "(path|--from)=gone.json is not there; .*",
    ),
}


@pytest.mark.parametrize(("verbs", "words", "line"), SAME.values(), ids=SAME)
def test_the_same_mistake_has_the_same_words_with_every_command(attnbench, folder, sweep, verbs, words, line):
    Path("latin.json").write_bytes(b'{"a": "\xe9"}')
    Path("latin.toml").write_bytes(b'name = "\xe9"\n')
    for verb in verbs:
        answer = attnbench([*verb.split(), *words.split()])
        assert answer.code == 2, verb
        last = answer.err.splitlines()[-1]
        assert re.fullmatch(line, last.partition(": ")[2]), f"{verb}: {last}"
    assert sweep.runs == []
