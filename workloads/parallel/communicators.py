"""Communicators of a rank, and other buffers that are not the allocator's.

Note [Outside the allocator]
    PyTorch makes a communicator when its group first communicates.  Which groups do follows from the pieces'
    launches, from how gradients and parameters are shared, and from the pipeline's messages.
    Transformer Engine's user buffers hold what tensor-parallel ranks exchange beside products: one for each
    of ten products, of all tokens (``initialize_ub`` of pytorch/module/base.py: ring exchange, pipelined and
    bulk, forward and backward).  PyTorch's window for the same has room for two shares of them
    (``_pipelined_produce_and_all2all`` of torch/distributed/_symmetric_memory).  DeepEP's hold what crosses
    NVLink and, between nodes, RDMA (``get_nvl_buffer_size_hint`` and its kin of deep_ep/buffer.py,
    csrc/config.hpp).
"""

from __future__ import annotations

from itertools import product
from typing import Final

from simcore.collectives.communicator import CommunicatorUse
from simcore.collectives.kinds import SEND_RECV
from simcore.memory import OutsideHolders
from workloads.models.spec import ModelSpec
from workloads.models.tensors import ELEMENT_BYTES
from workloads.parallel.job import Job, element_bytes

#: Products whose exchange has a user buffer, of a layer's four: forward, and twice backward but for two.
_USER_BUFFERS: Final = 10
#: DeepEP: channels (half the SMs of a dispatch), tokens that a receiver has room for over NVLink and RDMA,
#: and bytes beside each: where it comes from, 128 experts and weights, 128 scales.
_EXCHANGE_CHANNELS, _NVLINK_TOKENS, _RDMA_TOKENS = 12, 288, 128
_BESIDE_TOKEN: Final = 8 + 128 * (8 + 4) + 128 * 4
_NODE: Final = 8
#: About what norms' gradients are, which sequence parallelism sums.
_DUPLICATED_BYTES: Final = 1 << 20

Calls = dict[str, set[tuple[str, int]]]


def communicators(job: Job, stage: int) -> list[CommunicatorUse]:
    """Of the first rank of ``stage``."""
    rank = job.mesh.stage_ranks(stage)[0]
    calls, peers = _calls(job, stage), _peers(job, stage, rank)
    found = []
    for name, dims in job.mesh.groups().items():
        ranks = [rank]
        for size, stride in dims:
            first = rank // stride % size
            ranks = [one + (k - first) * stride for one, k in product(ranks, range(size))]
        members = tuple(sorted(ranks))
        to = frozenset(peers if name == "pp" else _partners(job, name, members, rank)) - {rank}
        if calls.get(name) or to:
            found.append(CommunicatorUse(name, members, frozenset(calls.get(name, ())), to))
    return found


def outside_holders(job: Job) -> OutsideHolders:
    """Of the first, the middle and the last stage; see Note [Outside the allocator]."""
    stages = job.parallel.pp
    buffers = (
        ("user buffers", _user_buffer_bytes(job)), ("symmetric memory", _symmetric_bytes(job)),
        ("exchange of experts", _exchange_buffer_bytes(job)),
    )  # fmt: skip
    groups = tuple(tuple(communicators(job, stage)) for stage in sorted({0, stages // 2, stages - 1}))
    return OutsideHolders(groups, buffers, job.software.lazy_loading)


def _user_buffer_bytes(job: Job) -> int:
    """Of Transformer Engine's user buffers, see Note [Outside the allocator]."""
    shard, model = job.shard, job.model
    overlaps = job.training.tp_overlap and shard.sequence_parallel and job.software.transformer_engine
    if not (overlaps and isinstance(model, ModelSpec)):
        return 0
    size = 1 if job.training.precision == "fp8" else ELEMENT_BYTES[shard.dtype]
    return _USER_BUFFERS * shard.tokens * model.hidden * size


def _symmetric_bytes(job: Job) -> int:
    """Of the window through which PyTorch's asynchronous tensor parallelism exchanges, see Note [Outside the
    allocator].
    """
    shard, model = job.shard, job.model
    if not (job.training.tp_overlap and job.parallel.tp > 1 and isinstance(model, ModelSpec)):
        return 0
    if job.software.transformer_engine:
        return 0
    return 2 * shard.tokens // job.parallel.tp * model.hidden * ELEMENT_BYTES[shard.dtype]


def _exchange_buffer_bytes(job: Job) -> int:
    """Of DeepEP's buffers, see Note [Outside the allocator]."""
    ep, model = job.parallel.ep, job.model
    if not isinstance(model, ModelSpec) or model.moe is None or ep == 1:
        return 0
    if job.software.moe_dispatcher != "flex" or model.moe.capacity_factor is not None:
        return 0
    token = model.hidden * ELEMENT_BYTES[job.shard.dtype] + _BESIDE_TOKEN
    nodes = max(1, ep // _NODE)
    nvlink = _EXCHANGE_CHANNELS * min(ep, _NODE) * _NVLINK_TOKENS * token
    rdma = _EXCHANGE_CHANNELS * nodes * _RDMA_TOKENS * token * 2 if nodes > 1 else 0
    return nvlink + rdma


def _partners(job: Job, group: str, members: tuple[int, ...], rank: int) -> set[int]:
    """Ranks of a group with which messages are exchanged: next and last in a ring, all where all get some."""
    place = members.index(rank)
    if group == "cp" and job.parallel.cp_style in ("ring", "torch"):
        return {members[(place + step) % len(members)] for step in (1, -1)}
    everybody = (group == "cp" and job.parallel.cp_style == "ulysses") or (
        group == "ep" and job.software.moe_dispatcher == "alltoall"
    )
    return set(members) if everybody else set()


def _calls(job: Job, stage: int) -> Calls:
    found: Calls = {}
    pieces = tuple(piece for chunk in job.chunks[stage] for piece in chunk.pieces)
    for piece in dict.fromkeys(pieces):  # layers are mostly alike
        for launch in (*piece.forward, *piece.backward):
            if launch.collective not in ("", SEND_RECV.name):
                found.setdefault(launch.group, set()).add((launch.collective, launch.num_bytes))
    training = job.training
    for group in ("dp", "expert_dp"):
        numel = job.numel(pieces, group, trainable=True)
        reduced = numel * element_bytes(training.grad_reduce_dtype)
        gathered = numel * element_bytes(training.param_gather_dtype)
        if not numel:
            continue
        if training.sharding == "ddp":
            found.setdefault(group, set()).add(("all_reduce", reduced))
            continue
        shards = "dp_shard" if group == "dp" and "dp_shard" in job.mesh.groups() else group
        found.setdefault(shards, set()).update({("reduce_scatter", reduced), ("all_gather", gathered)})
        if shards != group:
            found.setdefault("dp_replicate", set()).add(("all_reduce", reduced // job.mesh.shard_ranks))
    if job.shard.sequence_parallel and any(one.tp_duplicated for piece in pieces for one in piece.parameters):
        found.setdefault("tp", set()).add(("all_reduce", _DUPLICATED_BYTES))
    if training.clip_gradients and training.optimizer != "none":
        found.setdefault("mp" if training.sharding == "ddp" else "world", set()).add(("all_reduce", 4))
    return found


def _peers(job: Job, stage: int, rank: int) -> set[int]:
    """First ranks of the stages with which this one exchanges activations."""
    stages, stride = job.mesh.dense["pp"]
    loops = job.parallel.virtual_stages > 1 and stages > 2
    near = {stage - 1, stage + 1} if not loops else {(stage - 1) % stages, (stage + 1) % stages}
    return {rank + (one - stage) * stride for one in near if 0 <= one < stages}
