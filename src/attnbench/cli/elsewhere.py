"""Flags of other programs, by the flag for the same thing here: a wrong flag is answered with the right one.

They come from the scripts that docs/migrating.md maps, and from hyperfine, nvbench, tritonbench, pytest-benchmark and
common benchmark scripts.
"""

from __future__ import annotations

from collections.abc import Collection

HERE = {
    "--iterations N": "repeats repeat num-repeats n-repeats nrepeats repetitions num-iterations num-iters n-iters "
    "iters niter runs num-runs min-runs samples num-samples benchmark-min-rounds",
    "--warmup N": "warmups num-warmups num-warmup n-warmup n-warmups warmup-iters warmup-iterations warmup-runs",
    "--max-seconds S": "max-time min-time duration benchmark-max-time",
    "--headdim LIST": "d-heads d-head dhead head-dim head-dims headdims head-size hdim dim",
    "--seqlen LIST": "seq-lens seq-len seqlens seq-length sequence-length context-length ctx-len n-ctx",
    "--nheads LIST": "num-heads n-heads heads num-attention-heads",
    "--nheads-kv LIST": "num-kv-heads n-kv-heads kv-heads heads-kv num-key-value-heads",
    "--batch LIST": "batch-size batch-sizes bs b",
    "--dtype LIST": "precision type types data-type",
    "--mode fwd": "fwd fwd-only forward forward-only inference",
    "--mode bwd": "bwd bwd-only backward",
    "--mode fwd-bwd": "fwd-bwd bwd-fwd train training",
    "--l2 warm": "noncu no-ncu no-flush no-cache-flush warm-cache",
    "--l2 cold": "flush flush-cache cold-cache",
    "--backends NAMES": "backend only kernel kernels op attention-type implementation implementations impl provider",
    "--kernel REGEX": "kernel-name",
    "--table NAME": "stats",
    "--force": "force-overwrite",
    "--csv PATH": "export-csv output-csv",
    "--json PATH": "export-json output-json benchmark-json",
    "--md PATH": "export-markdown markdown",
    "--out DIR": "output output-dir out-dir outdir",
    "--gpus all|LIST": "num-gpus n-gpus ngpus gpu-ids nproc-per-node",
    "--world LIST": "world-size cp-size context-parallel-size",
    "--device DEVICE": "gpu cuda devices",
    "--lock-clocks SM[,MEM]": "lock-gpu-clocks clock-speed",
    "--quiet": "silent",
}


def here(flag: str, known: Collection[str]) -> str | None:
    """Return the flag among `known` that corresponds to a flag of another program; None if there is none."""
    name = flag.lstrip("-").lower().replace("_", "-")
    for ours, theirs in HERE.items():
        if name in theirs.split() and ours.split()[0] in known:
            return ours
    return None
