"""How tokens reach their experts: bytes of each dispatcher, what the host waits for, and who is hit."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.cost import KernelShape, RooflineCost
from simcore.hardware import load_gpu
from tests.models.known import MIXTRAL_8X7B
from workloads.models.build import model_pieces
from workloads.models.dispatch import owners_hit
from workloads.models.local import Shard
from workloads.models.pieces import EP_STREAM, HOST_SYNC, KernelLaunch, ModelPieces
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec, MoeSpec

SEQ = 512
HIDDEN = MIXTRAL_8X7B.hidden
TOKENS = 2 * SEQ


def pieces(
    model: ModelSpec, *, software: SoftwareSpec | None = None, tp: int = 1, ep: int = 1, etp: int = 1
) -> ModelPieces:
    shard = Shard(
        2, SEQ, tp=tp, ep=ep, etp=etp, sequence_parallel=tp > 1, software=software or SoftwareSpec()
    )
    return model_pieces(model, shard)


def exchanged(kernels: Sequence[KernelLaunch]) -> list[tuple[str, str, int]]:
    return [(k.name, k.group, k.num_bytes) for k in kernels if k.collective and k.dtype == "bfloat16"]


def test_deepep_sends_a_token_once_to_each_rank_of_a_node() -> None:
    """Eight experts on eight ranks, two for each token: every token goes to two ranks, as with copies."""
    layer = pieces(MIXTRAL_8X7B, ep=8, software=SoftwareSpec(moe_dispatcher="flex")).layers[0]
    sent = TOKENS * 2 * HIDDEN * 2
    assert exchanged(layer.forward) == [("deepep::dispatch", "ep", sent), ("deepep::combine", "ep", sent)]
    assert exchanged(layer.backward) == [("deepep::dispatch", "ep", sent), ("deepep::combine", "ep", sent)]


def test_deepep_sends_a_token_once_to_each_node() -> None:
    """64 experts on 16 ranks in two nodes, all 64 taken: two nodes, not 64 copies."""
    moe = MoeSpec(num_experts=64, top_k=64, ffn=64)
    model = MIXTRAL_8X7B.model_copy(update={"moe": moe})
    flex = pieces(model, ep=16, software=SoftwareSpec(moe_dispatcher="flex")).layers[0]
    plain = pieces(model, ep=16).layers[0]
    assert {size for _, _, size in exchanged(flex.forward)} == {TOKENS * 2 * HIDDEN * 2}
    assert {size for _, _, size in exchanged(plain.forward)} == {TOKENS * 64 * HIDDEN * 2}
    # The experts work on as many rows either way.
    products = [[k.in_shapes for k in made.forward if k.op_class == "bgemm"] for made in (flex, plain)]
    assert products[0] == products[1]


def test_a_token_crosses_once_to_what_nvlink_joins() -> None:
    """128 experts on 64 ranks, 8 a token: eight nodes, or one domain in which it reaches each rank once."""
    moe = MoeSpec(num_experts=128, top_k=8, ffn=64)
    model = MIXTRAL_8X7B.model_copy(update={"moe": moe})
    sent = {}
    for domain in (8, 64, 72):
        software = SoftwareSpec(moe_dispatcher="flex", moe_exchange_domain=domain)
        layer = pieces(model, ep=64, software=software).layers[0]
        ((size,),) = [{size for _, _, size in exchanged(layer.forward)}]
        sent[domain] = size / (HIDDEN * 2 * TOKENS)
    assert sent[8] == pytest.approx(owners_hit(moe, 8), rel=1e-3)
    assert sent[64] == sent[72] == pytest.approx(owners_hit(moe, 64), rel=1e-3)


def test_weights_that_go_with_rows_leave_nothing_of_the_experts_results_to_keep() -> None:
    """A row's weight, 4 bytes, follows it to its expert, its gradient comes back; results are not kept.

    Two copies of each token: the results of 2 x TOKENS rows of HIDDEN in 16 bits are what was kept.
    """
    late = pieces(MIXTRAL_8X7B, ep=8).layers[0]
    early = pieces(MIXTRAL_8X7B, ep=8, software=SoftwareSpec(moe_weighted_early=True)).layers[0]
    assert late.saved_bytes - early.saved_bytes == TOKENS * 2 * HIDDEN * 2
    for before, after in ((late.forward, early.forward), (late.backward, early.backward)):
        calls = Counter((k.collective, k.num_bytes) for k in after if k.group == "ep")
        calls.subtract(Counter((k.collective, k.num_bytes) for k in before if k.group == "ep"))
        assert +calls == {("all_to_all", TOKENS * 2 * 4): 1}


def test_the_all_gather_dispatcher_exchanges_tokens_not_copies() -> None:
    software = SoftwareSpec(moe_dispatcher="allgather")
    layer = pieces(MIXTRAL_8X7B, tp=4, etp=4, software=software).layers[0]
    whole = TOKENS * HIDDEN * 2
    assert [call for call in exchanged(layer.forward) if call[1] == "etp"] == [
        ("nccl::all_gather", "etp", whole), ("nccl::reduce_scatter", "etp", whole)
    ]  # fmt: skip


def test_tokens_cross_to_four_nodes_in_fp8_and_come_back_in_16_bits() -> None:
    """DeepSeek-V3 (arXiv 2412.19437, 3.2.2): 8 of 256 experts in 4 of 8 groups, a node each, 20 SMs."""
    moe = MoeSpec(num_experts=256, top_k=8, ffn=256, num_groups=8, top_groups=4)
    model = MIXTRAL_8X7B.model_copy(update={"moe": moe})
    software = SoftwareSpec(
        moe_dispatcher="flex", moe_exchange_sms=20, moe_dispatch_fp8=True, fp8_recipe="blockwise",
        fp8_transposes="at_use",
    )  # fmt: skip
    layer = model_pieces(model, Shard(2, SEQ, ep=64, precision="fp8", software=software)).layers[0]
    exchanges = [k for k in layer.forward + layer.backward if k.group == "ep"]
    # Four nodes a token, less the few that have none of its experts; a scale of 4 bytes for 128 elements.
    nodes = owners_hit(moe, 8)
    assert nodes == pytest.approx(4, rel=0.001)
    tokens = round(TOKENS * nodes)
    sizes = [tokens * HIDDEN * 33 // 32, tokens * HIDDEN * 2]
    assert [k.num_bytes for k in exchanges] == sizes * 2
    gpus = owners_hit(moe, 64) / nodes
    assert {k.collective for k in exchanges} == {f"all_to_all:sms=20,gpus={gpus:.4g}"}
    # The first product reads what has arrived: nothing is cast between, rows are copied in fp8.
    permute = next(k for k in layer.forward if k.name == "moe_permute")
    assert (permute.dtype, permute.bytes_written) == ("float8_e4m3fn", TOKENS * 8 * HIDDEN)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "flex"])
@pytest.mark.parametrize("capacity", [None, 1.0])
def test_the_host_waits_for_sizes_that_it_does_not_know(dispatcher: str, capacity: float | None) -> None:
    assert MIXTRAL_8X7B.moe is not None
    moe = MIXTRAL_8X7B.moe.model_copy(update={"capacity_factor": capacity})
    model = MIXTRAL_8X7B.model_copy(update={"moe": moe})
    software = SoftwareSpec.model_validate({"moe_dispatcher": dispatcher})
    layer = pieces(model, ep=8, software=software).layers[0]
    waits = [k.name for k in layer.forward].count(HOST_SYNC)
    assert waits == (0 if capacity else 1)
    assert HOST_SYNC not in [k.name for k in layer.backward]


def test_nothing_waits_in_a_graph() -> None:
    for dispatcher in ("alltoall", "allgather", "flex"):
        software = SoftwareSpec.model_validate({"moe_dispatcher": dispatcher, "cuda_graphs": True})
        layer = pieces(MIXTRAL_8X7B, ep=8, software=software).layers[0]
        assert HOST_SYNC not in [k.name for k in layer.forward]


def test_host_time_is_that_of_a_pass_whatever_is_launched() -> None:
    for fusion in (True, False):
        software = SoftwareSpec(moe_host_us=3000.0, moe_permute_fusion=fusion)
        layer = pieces(MIXTRAL_8X7B, ep=8, software=software).layers[0]
        for kernels in (layer.forward, layer.backward):
            assert sum(k.host_us for k in kernels) == pytest.approx(3000.0)


def test_sorting_by_index_takes_as_long_as_measured() -> None:
    """index_select of 4,096 rows of 5,120 in bf16: 136 us on an H100 (pytorch/pytorch issue 151612)."""
    shard = Shard(1, 2048, software=SoftwareSpec(moe_permute_fusion=False))
    model = MIXTRAL_8X7B.model_copy(update={"hidden": 5120})
    sorting = next(k for k in model_pieces(model, shard).layers[0].forward if "index_select" in k.name)
    assert sorting.out_shapes == ((2 * 2048, 5120),)
    kernel = KernelShape(
        sorting.name, sorting.op_class, sorting.dtype, sorting.in_shapes, sorting.out_shapes,
        bytes_read=sorting.bytes_read, bytes_written=sorting.bytes_written,
    )  # fmt: skip
    assert RooflineCost(load_gpu("h100-sxm")).seconds(kernel) == pytest.approx(136e-6, rel=0.15)


def test_odd_loads_misalign_no_product() -> None:
    """A fullest rank with a few rows more costs a little more, not what odd rows of a matrix cost."""
    assert MIXTRAL_8X7B.moe is not None
    cost = RooflineCost(load_gpu("h100-sxm"))

    def seconds(load: float) -> float:
        moe = MIXTRAL_8X7B.moe.model_copy(update={"load": load})  # type: ignore[union-attr]
        layer = pieces(MIXTRAL_8X7B.model_copy(update={"moe": moe}), ep=4).layers[0]
        kernels = [k for k in (*layer.forward, *layer.backward) if k.op_class == "bgemm"]
        return sum(
            cost.seconds(KernelShape(k.name, k.op_class, k.dtype, k.in_shapes, k.out_shapes, k.flops))
            for k in kernels
        )

    assert 0 <= seconds(1.011) / seconds(1.0) - 1 < 0.02


def test_each_expert_s_product_is_launched() -> None:
    layer = pieces(MIXTRAL_8X7B, ep=2, software=SoftwareSpec(moe_launch_each=True)).layers[0]
    assert [k.launches for k in layer.forward if k.op_class == "bgemm"] == [4, 4]  # two products, 8 / 2 each


@given(
    st.sampled_from([(8, 4), (16, 8), (8, 8)]), st.integers(1, 4), st.sampled_from([(0, 0), (4, 2), (4, 1)])
)
def test_owners_hit_counts_all_draws(sizes: tuple[int, int], top_k: int, groups: tuple[int, int]) -> None:
    """Against every draw of ``top_k`` of the experts of every choice of groups."""
    experts, owners = sizes
    num_groups, top_groups = groups
    if num_groups and experts // num_groups * top_groups < top_k:
        top_k = experts // num_groups * top_groups
    if num_groups and owners <= num_groups:
        owners = num_groups * 2
    moe = MoeSpec(num_experts=experts, top_k=top_k, ffn=64, num_groups=num_groups, top_groups=top_groups)
    share, members = experts // owners, experts // (num_groups or 1)
    hit = []
    for chosen in itertools.combinations(range(num_groups or 1), top_groups or 1):
        pool = [expert for expert in range(experts) if expert // members in chosen]
        hit += [len({e // share for e in draw}) for draw in itertools.combinations(pool, top_k)]
    assert owners_hit(moe, owners) == pytest.approx(sum(hit) / len(hit))


def test_a_token_of_limited_groups_reaches_no_more_nodes() -> None:
    """DeepSeek-V3: 8 of 256 experts from 4 of 8 groups, 64 ranks on 8 nodes: 4 nodes (arXiv 2412.19437)."""
    limited = MoeSpec(num_experts=256, top_k=8, ffn=64, num_groups=8, top_groups=4)
    free = MoeSpec(num_experts=256, top_k=8, ffn=64)
    assert owners_hit(limited, 8) == 4
    assert 5.2 < owners_hit(free, 8) < 5.4  # 8 (1 - (7/8)^8) = 5.25 with replacement


def test_exchanges_beside_another_microbatch_s_compute_have_a_stream_of_their_own() -> None:
    shard = Shard(2, SEQ, ep=8, ep_overlap=True)
    layer = model_pieces(MIXTRAL_8X7B, shard).layers[0]
    for kernels in (layer.forward, layer.backward):
        aside = [k for k, kernel in enumerate(kernels) if kernel.stream == EP_STREAM]
        assert [kernels[k].collective for k in aside] == ["all_to_all", "all_to_all"]
        # They wait for what they send, and nothing of this microbatch waits for them.
        assert all(kernels[k].waits_for for k in aside)
        assert not any(set(kernel.waits_for) & set(aside) for kernel in kernels)


def test_experts_may_have_biases() -> None:
    """Two vectors for each local expert: 2 x 14336 and 4096 wide; the second is weighted row by row."""
    assert MIXTRAL_8X7B.moe is not None
    moe = MIXTRAL_8X7B.moe.model_copy(update={"bias": True})
    layer = pieces(MIXTRAL_8X7B.model_copy(update={"moe": moe}), ep=4).layers[0]
    sizes = {p.name.rpartition("mlp.experts.")[2]: p.shape for p in layer.parameters if "experts" in p.name}
    assert sizes["linear_fc1.bias"] == (2, 2 * 14336)
    assert sizes["linear_fc2.bias"] == (2, 4096)
    plain = pieces(MIXTRAL_8X7B, ep=4).layers[0]
    assert sum(k.flops for k in layer.backward) == sum(k.flops for k in plain.backward)
    assert len(layer.forward) == len(plain.forward) + 4  # the first sum; weighting, sum and joining
