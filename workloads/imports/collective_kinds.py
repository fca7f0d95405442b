"""What a communication kernel carries out, by NCCL's metadata or its name."""

from __future__ import annotations

import re

from simcore.collectives.kinds import SEND_RECV, kind_of
from simcore.collectives.kinds.all_to_all import ALL_TO_ALL
from workloads.imports.recording import CollectiveMeta

#: Words in the names of NCCL's kernels and of torch's calls, the more special first.
_KINDS = (
    ("all_reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("send_recv", re.compile(r"send|recv", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
)
_ELEMENT_BYTES = {
    "float": 4, "float32": 4, "int": 4, "half": 2, "float16": 2, "bfloat16": 2, "double": 8, "float64": 8,
    "long": 8, "long int": 8, "byte": 1, "unsigned char": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1,
}  # fmt: skip


def collective_kind(name: str, meta: CollectiveMeta | None) -> str:
    """The collective that a communication kernel carries out; "send_recv" where nothing tells."""
    for text in (meta.collective if meta is not None else "", name):
        for kind, pattern in _KINDS:
            if pattern.search(text):
                return kind
    return SEND_RECV.name


def among_several(kind: str) -> str:
    """What ``kind`` is for a group: NCCL's SendRecv kernel carries out any exchange, so an all_to_all."""
    return ALL_TO_ALL.name if kind == SEND_RECV.name else kind


def collective_bytes(kind: str, meta: CollectiveMeta | None) -> int:
    """Size in nccl-tests' convention; 0 where the recording does not say."""
    if meta is None:
        return 0
    elements = meta.out_elements if kind_of(kind).gives_part else meta.in_elements
    return max(0, elements) * _ELEMENT_BYTES.get(meta.dtype.lower().removeprefix("c10::"), 0)
