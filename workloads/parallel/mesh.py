"""Ranks and process groups of a parallel job, as strides (Megatron-LM's order of axes)."""

from __future__ import annotations

from functools import cached_property

from simcore.graph import GraphBuilder
from simcore.graph.groups import Dim
from simcore.records import dataclass
from workloads.parallel.axis import AXES, further_axes
from workloads.parallel.spec import ParallelSpec


@dataclass(frozen=True)
class Mesh:
    """Strides of the axes in the order that ``ParallelSpec.order`` gives, fastest first.

    Dense layers see tp, cp, dp and pp, experts the same ranks as tensor parallel (etp), ep, expert data
    parallel and pp in the same order (parallel folding, arXiv 2504.14960).  Sharding takes cp whole and the
    inner part of dp.
    """

    parallel: ParallelSpec

    @property
    def etp(self) -> int:
        """Tensor parallelism of experts."""
        return self.parallel.etp or self.parallel.tp

    @property
    def stage_size(self) -> int:
        """Ranks of one pipeline stage, further axes aside."""
        return self.parallel.tp * self.parallel.cp * self.parallel.dp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same dense parameters: dp x cp."""
        return self.parallel.dp * self.parallel.cp

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts."""
        return self.stage_size // (self.etp * self.parallel.ep)

    @property
    def shard_ranks(self) -> int:
        """Ranks over which ZeRO and FSDP split dense parameters."""
        return self.parallel.dp_shard * self.parallel.cp if self.parallel.dp_shard else self.replicas

    @property
    def expert_shard_ranks(self) -> int:
        """Ranks over which ZeRO splits experts: as many copies of their states as of dense layers'.

        Source: megatron/core/parallel_state.py, the partial groups of expert data parallelism.
        """
        copies = self.parallel.dp // self.parallel.dp_shard if self.parallel.dp_shard else 1
        return max(1, self.expert_replicas // copies)

    @cached_property
    def dense(self) -> dict[str, Dim]:
        """(size, stride) of tp, cp, dp, pp and further axes."""
        p = self.parallel
        return _strides(p.axes, {axis.name: p.degree(axis.name) for axis in AXES.values() if axis.is_dense})

    @cached_property
    def experts(self) -> dict[str, Dim]:
        """(size, stride) of tp (of experts), ep, dp (of experts), pp and further axes."""
        p = self.parallel
        sizes = {"tp": self.etp, "ep": p.ep, "dp": self.expert_replicas, "pp": p.pp}
        return _strides(p.axes, sizes | {axis.name: p.degree(axis.name) for axis in further_axes()})

    def groups(self) -> dict[str, tuple[Dim, ...]]:
        """Member dims of every group with more than one member."""
        dense, experts = self.dense, self.experts
        wanted = {
            "tp": (dense["tp"],),
            "cp": (dense["cp"],),
            "dp": (dense["cp"], dense["dp"]),
            "pp": (dense["pp"],),
            "mp": (dense["tp"], dense["pp"]),
            "ep": (experts["ep"],),
            "etp": (experts["tp"],),
            "expert_dp": (experts["dp"],),
            "norm": ((self.parallel.norm_group, dense["dp"][1]),),
            "world": ((self.parallel.world_size, 1),),
        }
        if self.local_ranks < self.parallel.world_size and self.parallel.strategy.is_said:
            inner = self.local_ranks
            wanted |= {"intra": ((inner, 1),), "inter": ((self.parallel.world_size // inner, inner),)}
        if self.two_way:
            wanted["pp_bwd"] = wanted["pp"]
        if self.shard_ranks < self.replicas:
            size, stride = dense["dp"]
            inner = self.parallel.dp_shard
            wanted["dp_shard"] = (dense["cp"], (inner, stride))
            wanted["dp_replicate"] = ((size // inner, stride * inner),)
        wanted |= {axis.name: (dense[axis.name],) for axis in further_axes()}
        joined = {name: _joined(dims) for name, dims in wanted.items()}
        return {name: dims for name, dims in joined.items() if dims}

    @property
    def local_ranks(self) -> int:
        """Ranks of the inner level of strategies."""
        return min(self.parallel.strategy.local or 8, self.parallel.world_size)

    @property
    def two_way(self) -> bool:
        """Whether activations and gradients go from one stage to the same other one."""
        p = self.parallel
        return p.pp > 1 and (not p.pipeline.loops or (p.pp == 2 and p.virtual_stages > 1))

    def declare(self, build: GraphBuilder) -> None:
        """Declare the groups that have more than one member."""
        for name, dims in self.groups().items():
            build.group(name, dims=dims)
        size, stride = self.dense["pp"]
        if size > 1:
            others = tuple(dim for axis, dim in self.dense.items() if axis != "pp" and dim[0] > 1)
            build.group("embd", dims=((2, (size - 1) * stride),), base_dims=others)

    def stage_ranks(self, stage: int) -> list[int]:
        """Ranks of a pipeline stage, ascending."""
        size, stride = self.dense["pp"]
        outer = range(stage * stride, self.parallel.world_size, size * stride)
        return [start + inside for start in outer for inside in range(stride)]


def _strides(axes: tuple[str, ...], sizes: dict[str, int]) -> dict[str, Dim]:
    found: dict[str, Dim] = {}
    stride = 1
    for axis in axes:
        if axis in sizes:
            found[axis] = (sizes[axis], stride)
            stride *= sizes[axis]
    return found


def _joined(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Dims by stride; neighbours that continue each other are one."""
    out: list[Dim] = []
    for size, stride in sorted((dim for dim in dims if dim[0] > 1), key=lambda dim: dim[1]):
        if out and out[-1][0] * out[-1][1] == stride:
            out[-1] = (out[-1][0] * size, out[-1][1])
        else:
            out.append((size, stride))
    return tuple(out)
