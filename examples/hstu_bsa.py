"""One configuration of dense against block-sparse HSTU, measured and printed: `python examples/hstu_bsa.py`."""

from pathlib import Path

import attnbench
from attnbench.formats.layouts import load_layout

SUITE = """
name = "hstu-one"
title = "one configuration"
workload = "hstu"
backends = ["hstu-eager", "hstu-bsa-eager"]
layout = "seed-000"
settings = { warmup = 3, iterations = 10, seed = 42 }

[[cases]]
batch = 2
seqlen = 128
nheads = 4
attn_dim = 32
linear_dim = 64
dtype = "fp32"
"""

if __name__ == "__main__":
    Path("hstu_one.toml").write_text(SUITE)
    result = attnbench.run("hstu_one.toml")
    print(load_layout("seed-000").console(result.run))
