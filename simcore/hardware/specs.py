"""Hardware as frozen values, SI units in every name.

Fields are keys of hardware_profiles/*.toml, and annotations say what a file may give; see Note [Schemas].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Final

from simcore.errors import InputError
from simcore.hardware.sustained import Sustained
from simcore.hardware.wiring import FABRICS, NODE_KINDS, NodeWiring
from simcore.records import dataclass
from simcore.tables import Each, Text, names
from simcore.units import Number

MATH_MODES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
#: How a GPU runs: at the clocks of long training, or at the rated ones of a microbenchmark.
CONDITIONS: Final = ("sustained", "cool")

BANDWIDTH: Final = Number("bandwidth")
RATIO: Final = Number("ratio", at_most=1)
# A latency of zero is a useful idealisation; a rate of zero only divides by zero.
# No latency here reaches a second; beyond it, a step no longer fits in 64 bits of picoseconds.
LATENCY: Final = Number("time", zero_allowed=True, at_most=1)
# Nothing here is counted in more than 2**24; larger numbers overflow columns of integers.
Count = Annotated[int, Number("count", integer=True, at_most=2**24)]
InNode = Annotated[int, Number("count", integer=True, at_most=1024)]
Size = Annotated[int, Number("size", integer=True)]
SizeOrZero = Annotated[int, Number("size", integer=True, zero_allowed=True)]
Bandwidth = Annotated[float, BANDWIDTH]
Latency = Annotated[float, LATENCY]
Ratio = Annotated[float, RATIO]
Oversubscription = Annotated[float, Number("ratio", at_least=1, at_most=1024)]
Power = Annotated[float | None, Number("power")]


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One GPU model.  ``peak_flops`` maps a math mode to dense flop/s at the clock its datasheet rates.

    Math modes: fp64, fp32 (CUDA cores), tf32, fp16, bf16, fp8, fp4, int8; absent = unsupported.
    ``nvlink_bytes_per_s`` is per direction, all links together (datasheet), ``nvlink_links`` how many,
    ``nvlink_efficiency`` the share that data can use (the rest is packet headers and flow control).
    ``launch_overhead_s``: host time of one launch call; ``launch_latency_s``: launch call to start on an
    idle stream; ``kernel_gap_s``: start cost of back-to-back kernels on one stream.
    ``host_bytes_per_s``: of copies to or from the host, where they do not go over PCIe;
    ``host_memory_bytes_per_s``: of the host's memory, for each GPU, where it is not a DGX H100's.
    ``power_limit_w``: of the board; ``static_power_w``: what it draws at load whatever the clock; None where
    they are not known (:mod:`simcore.hardware.sustained`).
    ``generation`` names the tables that say how its kernels and collectives are written, ``like`` the
    generation whose tables stand in where it has none.
    ``die`` names the chip, ``sustained`` what it keeps up in long training (None: no run of it is known);
    ``conditions`` whether that counts.  ``sources`` says for each number where it comes from.
    """

    name: str
    generation: str
    like: str = ""
    die: str = ""
    num_sms: Count
    boost_clock_hz: Annotated[float, Number("frequency")]
    hbm_bytes: Size
    hbm_bytes_per_s: Bandwidth
    l2_bytes: Size
    l2_bytes_per_s: Bandwidth
    nvlink_bytes_per_s: Bandwidth
    nvlink_links: Count
    nvlink_efficiency: Ratio
    copy_engines: Count
    launch_overhead_s: Latency
    launch_latency_s: Latency
    kernel_gap_s: Latency
    gemm_efficiency: Ratio  # share of peak that a large, well-shaped GEMM sustains (power-limited clock)
    hbm_efficiency: Ratio  # share of peak HBM bandwidth that a streaming kernel reaches
    reserved_bytes: SizeOrZero  # CUDA context, NCCL buffers: not available to the framework
    exp_per_clock_per_sm: Count = 16  # exponentials; NVIDIA's SMs since Volta
    power_limit_w: Power = None
    static_power_w: Power = None
    host_bytes_per_s: Annotated[float | None, BANDWIDTH] = None  # to or from the host's memory
    host_memory_bytes_per_s: Annotated[float | None, BANDWIDTH] = None  # a GPU's share of the host's own
    peak_flops: Annotated[dict[str, float], Each(Number("compute"), MATH_MODES)]
    sustained: Sustained | None = None
    conditions: Annotated[str, Text(CONDITIONS)] = CONDITIONS[0]
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def table(self, kind: str) -> str:
        """Name of the table in ``hardware_profiles/<kind>`` ("cost", "nccl", "tuner") that holds for it."""
        own = not self.like or self.generation in names("hardware_profiles", kind)
        return self.generation if own else self.like

    def peak(self, mode: str) -> float:
        """Dense flop/s in a math mode.  InputError, with the modes that it has, for one that it lacks."""
        if mode not in self.peak_flops:
            raise InputError(
                f"{self.name} has no peak_flops.{mode}, which a kernel needs, only those of"
                f" {', '.join(self.peak_flops)}; --set gpu.peak_flops.{mode}=... gives one"
            )
        return self.peak_flops[mode]

    @property
    def borrowed(self) -> str:
        """What its generation takes from another, as a warning; empty for nothing."""
        return f"{self.name}: {self.sources['generation']}" if self.like else ""

    def under_load(self, num_gpus: int) -> GpuSpec:
        """The slowest of ``num_gpus`` GPUs in a training step, as rated where ``conditions`` are "cool".

        Its SM clock and all compute peaks are those that it keeps up; see Note [Slowest GPU].
        """
        if self.conditions == "cool" or self.sustained is None:
            return self
        clock = self.sustained.slowest_clock(num_gpus)
        rates = {mode: self.sustained.fp8 if mode == "fp8" else 1.0 for mode in self.peak_flops}
        peaks = {mode: peak * rates[mode] * clock for mode, peak in self.peak_flops.items()}
        return replace(self, peak_flops=peaks, boost_clock_hz=self.boost_clock_hz * clock, conditions="cool")

    def load_remarks(self, num_gpus: int) -> tuple[str, str]:
        """(assumption, warning) about the clock of a job of ``num_gpus``; the warning may be empty."""
        if self.conditions == "cool":
            return "GPUs run at their rated clocks, as in a short benchmark: gpu.conditions=cool", ""
        if self.sustained is None:
            unknown = (
                f"{self.name}: no training run of this GPU or its die was at hand, so its clock under load"
                " is taken as rated, which long training on other GPUs falls short of by 7 to 17%"
            )
            return f"GPUs run at the rated clock of {self.name}", unknown
        held, slowest = self.sustained, self.sustained.slowest_clock(num_gpus)
        said = (
            f"SM clock under load: {slowest:.3f} of the rated one ({self.die}: mean {held.clock:g}, the"
            f" slowest of {num_gpus:,} GPUs sets the pace), fp8 products at {held.fp8:g} of their ratio to"
            " bf16 ones"
        )
        if self.name in held.measured_on:
            return said, ""
        beside = f" beside other boards with a {self.die} ({', '.join(held.measured_on)})"
        follows = f"what its power limit leaves it{beside}" if held.measured_on else held.sources["clock"]
        return said, (
            f"{self.name}: its clock under load is {follows}; no training run of this one was at hand"
        )


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """A cluster: ``num_nodes`` x ``gpus_per_node`` of one GPU model and how they are wired.

    ``intra_node``: "nvswitch" (full bandwidth between any pair), "nvlink" (links between pairs) or "pcie";
    ``wiring`` holds the details.  ``fabric``: "rail" (NIC n of each of ``nodes_per_leaf`` nodes on one leaf),
    "leaf_spine" or "fat_tree" (all NICs of ``nodes_per_leaf`` nodes on one leaf); leaves are joined by spines
    or, with ``leaves_per_pod``, first by those of their pod and above by a core.  "dragonfly": leaves of a
    group are joined by ``local_cables`` per pair, groups by ``global_cables`` per pair.
    ``nodes_per_domain``: nodes whose GPUs one layer of NVSwitches joins, trays of a rack-scale system (1:
    each node for itself); NICs and hosts stay with the node.
    ``nic_bytes_per_s`` is per NIC and direction (line rate); ``nic_efficiency`` the share that data can use;
    ``uplink_bytes_per_s`` the line rate of one cable between switches (0: as a NIC).  Oversubscription 1.0 =
    full bisection at that level.  ``routing``: "rail" hands data for another rail to the GPU on that rail
    first (over NVLink), "ecmp" sends it through the spines, "auto" is "rail" on a rail fabric.
    ``transport``: "infiniband", "roce", "efa", "tcpx", "tcpxo" or "sockets"; docs/topologies.md says who
    reads it.
    ``nccl_environment``: NCCL variables that the fabric's plugin or owner sets for all jobs.
    ``nccl_net_latency_s``: what the fabric's plugin tells NCCL's tuner of its latency (0: as the wires).
    ``fabric_measured``: the published measurements that the numbers between nodes were checked against or
    fitted to, "" for none.
    ``placement``: "linear" fills nodes in order, "round_robin" deals ranks to nodes in turn, "listed" takes
    rank r's GPU from ``placed_gpus[r]``.
    ``link_overrides`` maps ``<link name>.bytes_per_s`` or ``<link name>.latency_s`` to a value that
    replaces the derived one; ``sources`` says for each number where it comes from.
    """

    name: str
    gpu: GpuSpec
    intra_node: Annotated[str, Text(NODE_KINDS)]
    fabric: Annotated[str, Text(FABRICS)]
    nccl_version: str
    num_nodes: Count
    gpus_per_node: InNode
    nvlink_latency_s: Latency  # one way, GPU to GPU through the switch, small message
    nics_per_node: InNode
    nic_bytes_per_s: Bandwidth
    nic_efficiency: Ratio
    nic_latency_s: Latency  # one way, same leaf, small message
    hop_latency_s: Latency  # each further switch hop
    nodes_per_leaf: Count
    spine_oversubscription: Oversubscription
    nodes_per_domain: InNode = 1
    leaves_per_pod: Count = 0
    core_oversubscription: Oversubscription = 1.0
    leaves_per_group: Count = 0
    local_cables: Count = 0
    global_cables: Count = 0
    uplink_bytes_per_s: Bandwidth = 0.0
    nccl_net_latency_s: Latency = 0.0
    routing: Annotated[str, Text(("auto", "rail", "ecmp"))] = "auto"
    transport: Annotated[str, Text(("infiniband", "roce", "efa", "tcpx", "tcpxo", "sockets"))] = "infiniband"
    nccl_environment: str = ""
    fabric_measured: str = field(default="", compare=False)
    placement: str = "linear"
    placed_gpus: tuple[int, ...] = ()
    wiring: NodeWiring = field(default_factory=NodeWiring)
    link_overrides: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.num_nodes * self.gpus_per_node

    @property
    def gpus_per_domain(self) -> int:
        """GPUs that NVLink (or what stands for it) joins, in one node or several."""
        return self.gpus_per_node * self.nodes_per_domain

    @cached_property
    def ranks_per_domain(self) -> int:
        """The greatest r of which every rank is a multiple at which another NVLink domain begins.

        Groups of consecutive ranks stay inside domains where their size divides it.
        """
        if self.placement == "round_robin":
            return self.gpus_per_domain if self.num_nodes == self.nodes_per_domain else 1
        if self.placement == "linear":
            return self.gpus_per_domain
        domains = [gpu // self.gpus_per_domain for gpu in self.placed_gpus]
        begins = [rank for rank, (one, other) in enumerate(pairwise(domains), 1) if one != other]
        return math.gcd(*begins) or self.gpus_per_domain

    @property
    def nvswitch_bytes_per_s(self) -> float:
        """What data can use of one GPU's links into NVSwitches, per direction."""
        port = self.gpu.nvlink_bytes_per_s * self.gpu.nvlink_efficiency
        links = self.wiring.switch_links
        return port * links / self.gpu.nvlink_links if links else port

    @property
    def num_placed(self) -> int:
        """Ranks that can be placed."""
        return len(self.placed_gpus) if self.placement == "listed" else self.num_gpus

    @cached_property
    def rail_routing(self) -> bool:
        """Whether traffic between rails moves over NVLink to the rail's GPU first."""
        return self.fabric == "rail" if self.routing == "auto" else self.routing == "rail"
