"""Time any function, and compare several that are measured in turn: `python examples/time_a_function.py`."""

import torch

import attnbench

device = "cuda" if torch.cuda.is_available() else "cpu"
scores = torch.randn(64, 1000, device=device)


def library():
    return scores.softmax(-1)


def by_hand():
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


print(attnbench.bench(library))
print(attnbench.compare({"by hand": by_hand, "library": library}, rel_ci=0.02))
