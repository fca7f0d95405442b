"""A decision about a collective, what the user forces of it, and the costs that decisions share."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from simcore.collectives import tuner
from simcore.collectives.channels import ChannelGraph, bounded, search_channels
from simcore.collectives.forced import Forced
from simcore.collectives.layout import PlacedGroup
from simcore.collectives.protocols import Chunking, Protocol
from simcore.collectives.timing import GenerationTiming
from simcore.collectives.tuning_constants import GenerationTuning, release_of, tuning_of
from simcore.elementary import log1p
from simcore.hardware.specs import ClusterSpec
from simcore.records import dataclass


@dataclass(frozen=True)
class ForcedSettings:
    """What the user forces; the defaults leave it to NCCL.  See :class:`simcore.collectives.NcclPlanner`."""

    algorithms: Forced = tuner.ANY
    protocols: Forced = tuner.ANY
    max_channels: int | None = None
    min_channels: int | None = None
    buffer_bytes: int | None = None
    nvls: bool = True

    def bounded(self, channels: int) -> int:
        """``channels`` within the forced limits."""
        return bounded(channels, self.min_channels, self.max_channels)


@dataclass(frozen=True)
class Decision:
    """Everything about a plan that does not name links or ranks.

    ``sent_bytes``: what an average rank sends.  ``fill_bytes``: how much it could send while the pipeline
    fills; ``fill_inside_bytes``, ``fill_between_bytes``: the same where it is known that hops within nodes
    fill (at NVLink's rate) or hops between them (at the NICs').
    ``copy_bytes_per_s``: what the copy loops of all channels sustain, wire bytes.
    ``copy_share``, ``network_share``: the part of the time that the loops feed NVLink, and that NICs have
    something to send.  ``hbm_bytes_per_byte``: HBM traffic of a member per byte that it sends, None where it
    follows from the kind (:mod:`simcore.collectives.closed_form`).  Of ``latency_s``, ``between_s`` passes
    between steps.  See Note [Time of a collective] in :mod:`simcore.collectives.timing`.
    """

    algorithm: str
    protocol: Protocol
    channels: int
    chunking: Chunking
    num_steps: int
    latency_s: float
    sent_bytes: float
    fill_bytes: float
    copy_bytes_per_s: float
    copy_share: float
    network_share: float
    between_s: float = 0.0
    fill_inside_bytes: float = 0.0
    fill_between_bytes: float = 0.0
    hbm_bytes_per_byte: float | None = None


@dataclass(frozen=True)
class Costs:
    """One cluster with its forced settings: what every decision about it needs."""

    cluster: ClusterSpec
    settings: ForcedSettings
    timing: GenerationTiming

    @cached_property
    def release(self) -> tuple[int, int]:
        """NCCL's, major and minor."""
        return release_of(self.cluster.nccl_version)

    @cached_property
    def believed(self) -> GenerationTuning:
        """What that release believes of the GPUs."""
        return tuning_of(self.cluster.gpu.table("tuner"), self.release)

    @property
    def wire(self) -> float:
        """What a GPU's NVLink port carries per direction, bytes/s."""
        return self.cluster.nvswitch_bytes_per_s

    def warm_up_s(self, scale_s: float, sent_bytes: float) -> float:
        """What the drift of channels costs in all, of ``sent_bytes`` per rank."""
        return scale_s * log1p(sent_bytes / self.timing.warm_up_bytes)

    def network_hop_s(self, protocol: Protocol, layout: PlacedGroup) -> float:
        """One hop between nodes, wire included."""
        return layout.network_s + self.timing.protocols[protocol.name].network_hop_s

    def graph(self, layout: PlacedGroup) -> ChannelGraph:
        """The group's channels, within the forced limits."""
        graph = search_channels(
            self.believed,
            layout.num_nodes,
            self.wire,
            self.cluster.nic_bytes_per_s,
            layout.nics_used,
            layout.node_rings,
        )
        channels = self.settings.bounded(graph.channels)
        total = graph.channels * graph.bytes_per_s
        return replace(graph, channels=channels, bytes_per_s=total / channels)
