"""Ranks and process groups of a parallel job, as strides (Megatron-LM's order of axes)."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.graph import GraphBuilder
from workloads.parallel.spec import ParallelSpec


@dataclass(frozen=True)
class Mesh:
    """Strides of the axes.  Tensor-parallel ranks are neighbours, pipeline stages furthest apart.

    Experts see the ranks of a stage as etp x ep x expert_dp (arXiv 2504.14960, parallel folding).
    """

    parallel: ParallelSpec

    @property
    def etp(self) -> int:
        """Tensor parallelism of experts."""
        return self.parallel.etp or self.parallel.tp

    @property
    def stage_size(self) -> int:
        """Ranks of one pipeline stage."""
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

    def declare(self, build: GraphBuilder) -> None:
        """Declare the groups that have more than one member."""
        p = self.parallel
        tp, cp, dp, pp = p.tp, p.cp, p.dp, p.pp
        wanted = {
            "tp": (((tp, 1),), tp),
            "cp": (((cp, tp),), cp),
            "dp": (((dp * cp, tp),), dp * cp),
            "pp": (((pp, self.stage_size),), pp),
            "mp": (((tp, 1), (pp, self.stage_size)), tp * pp),
            "ep": (((p.ep, self.etp),), p.ep),
            "etp": (((self.etp, 1),), self.etp),
            "expert_dp": (((self.expert_replicas, self.etp * p.ep),), self.expert_replicas),
            "world": (((p.world_size, 1),), p.world_size),
        }
        shard = self.shard_ranks
        if shard < self.replicas:
            wanted["dp_shard"] = (((shard, tp),), shard)
            wanted["dp_replicate"] = (((self.replicas // shard, tp * shard),), self.replicas // shard)
        for name, (dims, size) in wanted.items():
            if size > 1:
                build.group(name, dims=dims)
        if pp > 1:
            ends = (pp - 1) * self.stage_size
            build.group("embd", dims=((2, ends),), base_dims=((self.stage_size, 1),))

    def stage_ranks(self, stage: int) -> range:
        """Ranks of a pipeline stage."""
        return range(stage * self.stage_size, (stage + 1) * self.stage_size)
