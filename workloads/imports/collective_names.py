"""What communicates in a recording, and which collective it is, by the names of libraries and frameworks.

The one table of these names: of kernels (NCCL, RCCL, MSCCL, NVSHMEM, DeepEP, frameworks' own all_reduces), of
the framework's calls that launch them (c10d), of NCCL's own calls and of XLA's instructions.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import SEND_RECV
from simcore.collectives.kinds.all_to_all import ALL_TO_ALL

#: Where a name begins, also in one that the compiler mangled: "_ZN7deep_ep9internode8dispatch".
_BEGIN = "(?<![a-z_])"
#: Exchanges of tokens among experts.  Sources: DeepEP, csrc/kernels ("dpsk::ep" in DeepSeek's own traces) and
#: UCCL's of it, where only get_dispatch_layout stays on the GPU; its hybrid-ep branch; TensorRT-LLM and
#: FlashInfer, moeAlltoAllKernels.cu; MoRI, src/ops/dispatch_combine; Perplexity's a2a-kernels.
_EXPERTS = (
    rf"{_BEGIN}(?:deep_ep|uccl|dpsk(?:::|2)ep)(?:::|\d)(?![\w:]*get_dispatch_layout)"
    rf"|{_BEGIN}hybrid_ep::(?:dispatch|combine|device_sync)_kernel"
    rf"|{_BEGIN}moea2a(?:dispatch|combine)kernel|{_BEGIN}ep(?:dispatch|combine)(?:intra|inter)node"
    rf"|{_BEGIN}a2a_(?:dispatch|combine)_(?:send|recv)_kernel"
)
#: Collectives without NCCL.  Sources: PyTorch, symm_mem/CUDASymmetricMemoryOps.cu; FBGEMM, car.cu; vLLM and
#: aiter, custom_all_reduce.cuh, custom_all_gather_reduce_scatter.cu, quick_all_reduce.cuh; TensorRT-LLM and
#: FlashInfer, customAllReduceKernels.cu, trtllm_allreduce_fusion and trtllm_mnnvl_allreduce; Transformer
#: Engine, userbuffers.cu.  "all_reduce" alone is no sign: Inductor names kernels after what stands around
#: them.
_DIRECT = (
    rf"{_BEGIN}_?(?:multimem_|one_shot_|two_shot_)+(?:all_reduce|all_gather|reduce_scatter|reduce)"
    rf"|cross_device_(?:reduce_|all_gather)|{_BEGIN}mnnvl_lamport_(?:all_gather|reduce_scatter)"
    rf"|reduce_scatter_cross_device_store|{_BEGIN}quickreduce(?:::|\d)|allreduce_prototype_twoshot"
    rf"|(?:one|two)shotallreduce(?:fusion)?kernel|{_BEGIN}(?:moe\w*_)?allreduce_fusion_kernel"
    rf"|{_BEGIN}k?userbuffers_"
)
#: In the names of kernels that communicate.
_KERNELS = re.compile(rf"nccl|rccl|mscclkernel|mscclpp|nvshmem|{_EXPERTS}|{_DIRECT}", re.IGNORECASE)
#: Calls of a library as PyTorch notes them, inside its own: "nccl:_all_gather_base".
LIBRARY_ANNOTATIONS = ("nccl:", "rccl:")
LIBRARY_CALLS = (*LIBRARY_ANNOTATIONS, "record_param_comms")
#: PyTorch's own calls: "c10d::allreduce_".
FRAMEWORK_CALLS = "c10d::"
_ISSUES = re.compile(rf"{FRAMEWORK_CALLS}|{'|'.join(LIBRARY_CALLS)}|_c10d_functional::(?!wait)")
#: Words in the names of kernels, calls and instructions, the more special first.
_KINDS = (
    ("all_gather", re.compile(r"all_?gather|userbuffers_\w+_ag", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter|userbuffers_\w+_rs", re.IGNORECASE)),
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce|userbuffers_\w+_sum", re.IGNORECASE)),
    ("all_to_all", re.compile(rf"all_?to_?all|{_EXPERTS}", re.IGNORECASE)),
    ("send_recv", re.compile(r"send|recv", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
)
_BY_PEERS = re.compile(r"(?:nccl|rccl)\w*(?:send_?recv|all_?to_?all)", re.IGNORECASE)
_EXCHANGE = re.compile(r"all_?(to|2)_?all", re.IGNORECASE)


def is_communication(names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """By name number: whether a kernel is one of a communication library's."""
    return np.array([_KERNELS.search(name) is not None for name in names], dtype=np.bool_)


@lru_cache(maxsize=1 << 16)
def issues_communication(name: str) -> bool:
    """Whether a call of the framework of this name issues communication; waiting for it is none."""
    return _ISSUES.match(name) is not None


def collective_kind(*names: str) -> str:
    """The collective that is meant, by the first name that tells; "send_recv" where none does."""
    for name in names:
        for kind, pattern in _KINDS:
            if pattern.search(name):
                return kind
    return SEND_RECV.name


@lru_cache(maxsize=1 << 12)
def serves_peers(kernel: str) -> bool:
    """Whether a kernel's blocks each serve some peers and end with their data: NCCL's of sends and receives.

    Those of DeepEP and its like hold their SMs until all is through.
    """
    return _BY_PEERS.search(kernel) is not None


def exchange_kind(kind: str, call: str) -> str:
    """``kind``, which a SendRecv kernel's name says, as the framework's call around it means it."""
    return ALL_TO_ALL.name if kind == SEND_RECV.name and _EXCHANGE.search(call) else kind


def graph_collective(kind: str) -> str:
    """The graph's word: NCCL's SendRecv kernel does any exchange, an all_to_all of those who take part."""
    return ALL_TO_ALL.name if kind == SEND_RECV.name else kind
