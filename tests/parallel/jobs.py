"""Small jobs for tests of generated graphs: shapes that divide by anything, steps that simulate at once."""

from __future__ import annotations

from hypothesis import strategies as st

from simcore.collectives import NcclPlanner
from simcore.cost import RooflineCost
from simcore.engine import SimulationResult
from simcore.engine.shortcuts import simulate
from simcore.graph import Graph
from simcore.hardware import Topology, load_cluster
from workloads.models.spec import ModelSpec, MoeSpec
from workloads.parallel import ParallelSpec, TrainingSpec

SHARDINGS = ("ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")


def model(layers: int, *, experts: int = 0, tied: bool = True) -> ModelSpec:
    """A transformer of ``layers`` tiny layers."""
    moe = MoeSpec(num_experts=experts, top_k=2, ffn=256) if experts else None
    return ModelSpec(
        name="tiny", layers=layers, hidden=256, heads=8, ffn=512, vocab=1000, moe=moe, tied_embeddings=tied
    )


def step(graph: Graph) -> SimulationResult:
    """The graph on as many H100 nodes as it needs."""
    nodes = max(1, -(-graph.world_size // 8))
    cluster = load_cluster("h100", {"cluster.num_nodes": str(nodes)})
    topology = Topology(cluster)
    return simulate(graph, topology, RooflineCost(cluster.gpu), NcclPlanner(topology))


@st.composite
def jobs(draw: st.DrawFn) -> tuple[ModelSpec, ParallelSpec, TrainingSpec]:
    """Any job of at most 64 ranks that can be laid out."""
    pp = draw(st.integers(1, 4))
    schedule = draw(
        st.sampled_from(["gpipe", "1f1b", "interleaved", "zero_bubble", "dualpipe", "dualpipe_v", "zb_v"])
    )
    virtual, group = 1, 0
    if pp == 1 or (schedule == "dualpipe" and pp % 2):
        schedule = "1f1b"
    if schedule == "interleaved":
        virtual, group = draw(st.integers(2, 3)), pp + draw(st.integers(0, 2))
    if schedule == "zero_bubble" and draw(st.booleans()):
        virtual = 2
    if schedule == "gpipe":
        virtual = draw(st.integers(1, 2))
    if schedule in ("dualpipe_v", "zb_v"):
        virtual = 2
    microbatches = draw(st.integers(1, 6))
    if schedule == "interleaved":
        microbatches = group * draw(st.integers(1, 2))
        if group > pp:
            microbatches += draw(st.sampled_from([0, pp]))
            microbatches = max(microbatches, group)
    if schedule == "zero_bubble" and virtual > 1:
        microbatches = pp * draw(st.integers(1, 2))
    if schedule == "dualpipe_v":
        microbatches += 2 * pp - 1
    if schedule == "dualpipe":
        microbatches = 2 * pp + microbatches // 2 * 2
    tp, cp, dp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    dp *= draw(st.sampled_from([1, 2]))
    ep = draw(st.sampled_from([0, 1, 2]))
    etp = draw(st.sampled_from([1, tp]))
    if (tp * cp * dp) % (etp * max(ep, 1)):
        ep, etp = min(ep, 1), 1
    parallel = ParallelSpec(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=max(ep, 1), etp=etp, schedule=schedule, virtual_stages=virtual,
        microbatch_group=group, dp_shard=draw(st.sampled_from([0, dp, max(1, dp // 2)])),
        sequence_parallel=draw(st.booleans()),
        cp_style=draw(st.sampled_from(["ring", "all_gather", "ulysses", "torch"])),
        order=draw(st.sampled_from(["tp-cp-ep-dp-pp", "cp-tp-ep-dp-pp", "tp-ep-dp-cp-pp"])),
    )  # fmt: skip
    shardings = SHARDINGS if schedule != "dualpipe" else SHARDINGS[:2]
    training = TrainingSpec(
        micro_batch=1, global_batch=microbatches * dp, seq=128, sharding=draw(st.sampled_from(shardings)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        reshard_after_forward=draw(st.booleans()), prefetch=draw(st.integers(0, 2)),
        fsdp_ends_apart=draw(st.booleans()),
        overlap_grad_reduce=draw(st.booleans()), overlap_param_gather=draw(st.booleans()),
        overlap_p2p=draw(st.booleans()), p2p_per_peer=draw(st.booleans()),
        scatter_gather_p2p=draw(st.booleans()),
        reduce_every_microbatch=draw(st.booleans()), bucket_bytes=draw(st.sampled_from([0, 1 << 18])),
    )  # fmt: skip
    return model(virtual * pp, experts=4 if ep else 0, tied=draw(st.booleans())), parallel, training
