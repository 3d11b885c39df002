"""Short names of kernels such as ``void at::native::unrolled_elementwise_kernel<…``."""

from __future__ import annotations

import re

CARRIERS = re.compile(
    r"^(?:\w*elementwise_kernel\w*|reduce_kernel|device_kernel|Kernel2?|kernel|index_elementwise_kernel|"
    r"gpu_index_kernel|enable_if\w*)$"
)
"""Generic kernels that only wrap a functor or a kernel class, whose name is the telling one."""

INNER = re.compile(r"(\w+_kernel(?:_cuda|_impl)|\w*Functor\w*(?:_\w+)?|\w+Ops)\b(?=[<>(,{ ]|$|…)")
PLUMBING = ("gpu_kernel_impl", "gpu_kernel_impl_nocast", "AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor")
RETURNED = re.compile(r"^(?:void |std::enable_if<.*?>::type )")
SCOPES = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::")
LONGEST = 48


def short_name(name: str) -> str:
    """Return the kernel's own name, without namespaces, template arguments and parameters.

    For generic kernels that wrap a functor (PyTorch's element-wise family, CUTLASS's ``device_kernel``), return the
    name of the functor or kernel class.  A name that the tool shortened also works.
    """
    plain = RETURNED.sub("", SCOPES.sub("", name)).strip()
    head = re.split(r"[<(]", plain, maxsplit=1)[0].strip()
    *spaces, own = head.split(" ")[-1].split("::")
    if own == "kernel" and spaces:  # internal::gemvx::kernel
        own = spaces[-1]
    elif CARRIERS.match(own):
        own = _carried(plain, own)
    own = own or plain
    return own if len(own) <= LONGEST else own[: LONGEST - 1] + "…"


def _carried(plain: str, own: str) -> str:
    inner = [match[1] for match in INNER.finditer(plain[plain.find(own) + len(own) :])]
    named = [one for one in inner if one not in PLUMBING]
    if named:
        return named[0]
    # CUTLASS and cuBLAS: the first class in the brackets that is not a wrapper itself.
    for path in re.findall(r"[<: ](?:\w+::)*(\w{4,})(?=[<>,(]|$|…)", plain[plain.find(own) :]):
        if not re.match(r"enable_|is_|type$|array$|TensorIterator|unsigned$|\d", path) and path not in (*PLUMBING, own):
            return str(path)
    return own
