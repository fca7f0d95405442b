"""What an op's kind says of it: which kinds meet other ranks, run on the GPU, or take the host's time.

Said here and nowhere else: as tuples of kinds, as masks over a column of kinds, and as the names that files
give kinds.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray, OpKind

BoolArray = npt.NDArray[np.bool_]

#: One rank's half of an exchange between two.
P2P = (OpKind.SEND, OpKind.RECV)
#: What meets other ranks.
COMMUNICATION = (OpKind.COLLECTIVE, *P2P)
#: What a cost model gives a time: kernels and copies.
PRICED = (OpKind.COMPUTE, OpKind.MEMCPY)
#: What occupies a stream of the GPU; the rest orders streams or is the host's.
ON_GPU = (*PRICED, *COMMUNICATION)
#: What the host spends time on.
ON_HOST = (OpKind.HOST, OpKind.SYNC)

#: A kind's name in files, by its number.
KIND_NAMES = tuple(kind.name.lower() for kind in sorted(OpKind))


def _named(kinds: Iterable[OpKind]) -> tuple[str, ...]:
    return tuple(KIND_NAMES[kind] for kind in kinds)


P2P_KINDS, COMMUNICATION_KINDS = _named(P2P), _named(COMMUNICATION)
COMPUTE_KINDS, HOST_KINDS = _named(PRICED), _named(ON_HOST)


def _table(kinds: Iterable[OpKind]) -> BoolArray:
    return np.array([kind in kinds for kind in sorted(OpKind)], dtype=np.bool_)


_COMMUNICATES, _IS_P2P, _IS_PRICED = _table(COMMUNICATION), _table(P2P), _table(PRICED)
_IS_ON_GPU, _IS_ON_HOST = _table(ON_GPU), _table(ON_HOST)


def is_communication(kind: IntArray) -> BoolArray:
    """Mask of the ops that meet other ranks, over a column of kinds."""
    return _COMMUNICATES[kind]


def is_p2p(kind: IntArray) -> BoolArray:
    """Mask of sends and receives."""
    return _IS_P2P[kind]


def is_priced(kind: IntArray) -> BoolArray:
    """Mask of kernels and copies."""
    return _IS_PRICED[kind]


def is_on_gpu(kind: IntArray) -> BoolArray:
    """Mask of what occupies a stream of the GPU."""
    return _IS_ON_GPU[kind]


def is_on_host(kind: IntArray) -> BoolArray:
    """Mask of what the host spends time on."""
    return _IS_ON_HOST[kind]
