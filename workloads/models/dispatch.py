"""Tokens to the ranks that hold their experts, and back (Megatron-Core's token dispatchers, DeepEP).

Note [Dispatch]
    "alltoall": tokens are copied for each of their experts and sorted by expert, exchanged over "ep",
    gathered over "etp" (a tensor-parallel rank holds a slice of every expert), sorted by local expert, worked
    on, and sent back the same way; before that all ranks learn how many rows come from where, and the host,
    which sizes the exchange, waits for it unless capacities make sizes known.  With ``moe_weighted_early``
    each row's weight goes with it, in an exchange of its own, as do the weights' gradients back.
    "allgather": all tokens are gathered over "etp" and "ep"; each rank copies those of its experts, and sums
    are reduced and scattered back.
    With ``ep_overlap`` an exchange runs on a stream of its own, and what waits is what comes after the next
    one: in the steady state of a pipeline another microbatch's compute lies between them (DualPipe, arXiv
    2412.19437, section 3.2.1; Megatron-Core's --overlap-moe-expert-parallel-comm).  Warm-up and drain have
    no other pass beside them: there it stays on the compute stream.
    "flex" (DeepEP): a token crosses to each node that has one of its experts once, and reaches each rank
    once; copies for the experts are made, and added up, where they are.  A node is what NVLink joins
    (``moe_exchange_domain``: DeepEP is built for nodes of eight, HybridEP takes NVLink domains of 72).
    With ``moe_exchange_sms`` it is an exchange by kernels of its own (``simcore/collectives/routed.py``).
    With ``moe_dispatch_fp8`` what goes to experts, forward and backward, is fp8 with a scale for each 128
    elements, and is what their products read; what they give back is summed in 16 bits.
    Sources: megatron/core/transformer/moe/token_dispatcher.py; deep_ep/buffer.py, csrc/kernels/configs.cuh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from simcore.collectives.kinds.all_to_all import DEEPEP, TokenExchange
from simcore.records import dataclass
from workloads.models.fp8 import cast_for_product, fp8_row_bytes, operand
from workloads.models.local import NARROW, Shard
from workloads.models.op_tape import OpTape, TapedLaunch
from workloads.models.pieces import EP_STREAM, HOST_SYNC, KernelLaunch
from workloads.models.spec import MoeSpec
from workloads.models.tensors import Tensor, collective, compute


@dataclass(frozen=True)
class Dispatch:
    """What goes to the experts and back.

    ``there``: kernels from ``x`` to rows sorted by local expert, ``back``: the way home, each with what
    autograd launches for it; ``rows``: what the experts of this rank work on; ``saved_bytes``: what the way
    home keeps for its backward.
    """

    there: tuple[KernelLaunch, ...]
    there_grad: tuple[KernelLaunch, ...]
    back: tuple[KernelLaunch, ...]
    back_grad: tuple[KernelLaunch, ...]
    rows: Tensor
    saved_bytes: int

    def write_there(self, tape: OpTape) -> None:
        """Append the way to the experts."""
        op = tape.op()
        for kernel in self.there:
            op.launch(TapedLaunch(kernel))
        for kernel in self.there_grad:
            op.back(kernel)

    def write_back(self, tape: OpTape) -> None:
        """Append the way home."""
        op = tape.op()
        for number, kernel in enumerate(self.back):
            op.launch(TapedLaunch(kernel, saved_inputs=0 if number else self.saved_bytes))
        for kernel in self.back_grad:
            op.back(kernel)


def plan_dispatch(shard: Shard, moe: MoeSpec, x: Tensor, module: str) -> Dispatch:
    """The dispatcher that the build uses; see Note [Dispatch]."""
    style = shard.software.moe_dispatcher
    if style == "flex" and shard.ep > 1 and moe.capacity_factor is None:
        plan = _flex(shard, moe, x, module)
    elif style == "allgather":
        plan = _all_gather(shard, moe, x, module)
    else:
        plan = _all_to_all(shard, moe, x, module)
    if not shard.ep_overlap:
        return plan
    return replace(
        plan, there=_aside(plan.there), there_grad=_aside(plan.there_grad), back=_aside(plan.back),
        back_grad=_aside(plan.back_grad),
    )  # fmt: skip


def _aside(kernels: Sequence[KernelLaunch]) -> tuple[KernelLaunch, ...]:
    return tuple(
        replace(k, stream=EP_STREAM) if k.collective.startswith("all_to_all") else k for k in kernels
    )


def routed_tokens(moe: MoeSpec, tokens: int) -> int:
    """Rows that leave a rank: a copy of each token for each of its experts, or full capacities, padded."""
    if moe.capacity_factor is None:
        return tokens * moe.top_k
    return moe.num_experts * math.ceil(tokens * moe.top_k * moe.capacity_factor / moe.num_experts)


def rank_load(moe: MoeSpec, ep: int) -> float:
    """Tokens of the fullest rank over the mean, when its fullest expert has ``moe.load`` times the mean.

    The others of the same rank have what the rest of the experts have: (E - load) / (E - 1) each.  With
    capacities no expert has more than another.
    """
    local, total = moe.num_experts // ep, moe.num_experts
    if moe.capacity_factor is not None or total == 1:
        return 1.0
    return (moe.load + (local - 1) * (total - moe.load) / (total - 1)) / local


def owners_hit(moe: MoeSpec, owners: int) -> float:
    """Expected number of ``owners`` of equal shares of the experts that a token goes to.

    Its ``top_k`` experts are drawn at random, from ``top_groups`` of ``num_groups`` groups where routing is
    limited to them.
    """
    groups, chosen = (moe.num_groups, moe.top_groups) if moe.num_groups else (1, 1)
    if owners <= groups:
        return chosen * owners / groups if groups > 1 else 1.0
    pool = moe.num_experts * chosen // groups
    share = moe.num_experts // owners
    missed = math.comb(max(pool - share, 0), moe.top_k) / math.comb(pool, moe.top_k)
    return owners * chosen / groups * (1 - missed)


def _sizes_known(moe: MoeSpec) -> bool:
    return moe.capacity_factor is not None


def _host_waits(shard: Shard, module: str) -> list[KernelLaunch]:
    """Nothing waits in a graph: buffers are as large as they may get, kernels read the sizes themselves."""
    return [] if shard.software.cuda_graphs is True else [KernelLaunch(HOST_SYNC, module=module)]


def _counts(shard: Shard, moe: MoeSpec, module: str) -> list[KernelLaunch]:
    """How many rows go where: sums over the map of routes, shared over "ep", read by the host."""
    each = Tensor((moe.num_experts,), "int64")
    kernels = [compute("aten::sum.dim_IntList", [each.like(shard.residual_tokens, each.numel, dtype="bool")],
                       [each], module=module)]  # fmt: skip
    if shard.ep > 1:
        every = each.like(shard.ep, moe.num_experts)
        kernels.append(collective("all_gather", every, "ep", module=module))
        kernels += [compute("aten::sum.dim_IntList", [every], [each], module=module)] * 3
    if not _sizes_known(moe):
        kernels += _host_waits(shard, module)
    return kernels


def _all_to_all(shard: Shard, moe: MoeSpec, x: Tensor, module: str) -> Dispatch:
    routed = x.like(routed_tokens(moe, x.shape[0]), x.shape[-1])
    arrived = x.like(round(routed.shape[0] * rank_load(moe, shard.ep)), x.shape[-1])
    steps, rows = _exchanged(shard, moe, arrived, module)
    weighted = _with_weights(shard, steps) if shard.software.moe_weighted_early else steps
    home = _turned(steps)
    if shard.etp > 1 and not shard.sequence_parallel:
        home.insert(0, collective("all_reduce", rows, "etp", module=module))
    counts = _counts(shard, moe, module)
    return Dispatch(
        there=(*counts, *_sorting(shard, "moe_permute", [x], [routed], module), *weighted),
        there_grad=(*_turned(weighted), *_sorting(shard, "moe_unpermute", [routed], [x], module)),
        back=(*home, *_sorting(shard, "moe_unpermute", [routed], [x], module)),
        back_grad=(*_sorting(shard, "moe_permute", [x], [arrived], module), *steps),
        rows=rows,
        saved_bytes=_saved(shard, routed),
    )


def _saved(shard: Shard, rows: Tensor) -> int:
    """What the weights' gradients need: the experts' results, unless rows were weighted before them."""
    return 0 if shard.software.moe_weighted_early else _weighed(shard, rows).num_bytes


def _weighed(shard: Shard, rows: Tensor) -> Tensor:
    return replace(rows, dtype="float32") if shard.software.moe_weights_fp32 else rows


def _with_weights(shard: Shard, steps: Sequence[KernelLaunch]) -> list[KernelLaunch]:
    """Behind each exchange of rows the one of their weights; kernels that sort rows carry them along."""
    found: list[KernelLaunch] = []
    for step in steps:
        found.append(step)
        if step.collective:
            ((rows, _),) = step.out_shapes
            weights = Tensor((rows, 1), "float32" if shard.software.moe_router_fp32 else step.dtype)
            found.append(collective(step.collective, weights, step.group, module=step.module))
    return found


def _exchanged(shard: Shard, moe: MoeSpec, arrived: Tensor, module: str) -> tuple[list[KernelLaunch], Tensor]:
    """From sorted tokens to the local experts: kernels, and what is there then."""
    steps: list[KernelLaunch] = []
    if shard.ep > 1:
        steps.append(collective("all_to_all", arrived, "ep", module=module))
    # Without sequence parallelism every tensor-parallel rank has all tokens already.
    if shard.etp > 1 and shard.sequence_parallel:
        arrived = arrived.like(arrived.shape[0] * shard.etp, arrived.shape[1])
        steps.append(collective("all_gather", arrived, "etp", module=module))
    if moe.num_experts // shard.ep > 1 and shard.ep > 1:
        steps.append(compute("moe_sort_chunks", [arrived], [arrived], op_class="copy", module=module))
    return steps, arrived


def _all_gather(shard: Shard, moe: MoeSpec, x: Tensor, module: str) -> Dispatch:
    """All tokens to all ranks of "etp" and "ep"; each copies what its experts work on."""
    steps, everything = [], x
    for group, size in (("etp", shard.etp if shard.sequence_parallel else 1), ("ep", shard.ep)):
        if size > 1:
            everything = x.like(everything.shape[0] * size, x.shape[-1])
            steps.append(collective("all_gather", everything, group, module=module))
    share = rank_load(moe, shard.ep) / shard.ep
    rows = x.like(max(1, round(routed_tokens(moe, everything.shape[0]) * share)), x.shape[-1])
    home = _turned(steps)
    if shard.etp > 1 and not shard.sequence_parallel:
        home.insert(0, collective("all_reduce", everything, "etp", module=module))
    counts = [] if _sizes_known(moe) else _host_waits(shard, module)
    return Dispatch(
        there=(*steps, *counts, *_sorting(shard, "moe_permute", [everything], [rows], module)),
        there_grad=(*_sorting(shard, "moe_unpermute", [rows], [everything], module), *_turned(steps)),
        back=(*_sorting(shard, "moe_unpermute", [rows], [everything], module), *home),
        back_grad=(*steps, *_sorting(shard, "moe_permute", [everything], [rows], module)),
        rows=rows,
        saved_bytes=_saved(shard, rows),
    )


def _flex(shard: Shard, moe: MoeSpec, x: Tensor, module: str) -> Dispatch:
    tokens, width = x.shape
    load = rank_load(moe, shard.ep)
    nodes = -(-shard.ep * shard.etp // shard.software.moe_exchange_domain)
    # Between nodes InfiniBand is what takes time, NVLink delivers meanwhile.
    crossing = owners_hit(moe, nodes if nodes > 1 else shard.ep)
    sent = x.like(max(1, round(tokens * crossing * load)), width)
    unique = x.like(max(1, round(tokens * owners_hit(moe, shard.ep) * load)), width)
    rows = x.like(round(tokens * moe.top_k * load), width)
    there = replace(collective("all_to_all", sent, "ep", module=module), name="deepep::dispatch")
    home = replace(there, name="deepep::combine")
    if shard.software.moe_exchange_sms:
        there, home = _routed(shard, moe, x, there, nodes, load)
    before: list[KernelLaunch] = []
    if dispatches_fp8(shard):
        before = [cast_for_product(x, module)]
        rows = operand(rows, shard.narrow)
    gathers: list[KernelLaunch] = []
    if shard.etp > 1 and shard.sequence_parallel:
        rows = rows.like(rows.shape[0] * shard.etp, width)
        unique = unique.like(unique.shape[0] * shard.etp, width)
        gathers = [collective("all_gather", unique, "etp", module=module)]
    routes, owners = x.like(tokens, moe.top_k, dtype="int64"), x.like(tokens, shard.ep, dtype="bool")
    layout = compute("deepep_layout", [routes], [owners], op_class="reduction", module=module)
    arrived, wide = replace(unique, dtype=rows.dtype), replace(rows, dtype=x.dtype)
    copies = compute("moe_permute", [arrived], [rows], op_class="copy", module=module)
    sums = compute("moe_unpermute", [wide], [unique], op_class="copy", module=module)
    return Dispatch(
        there=(*before, layout, there, *_host_waits(shard, module), *gathers, copies),
        there_grad=(sums, *_turned(gathers), home),
        back=(sums, *_turned(gathers), home),
        back_grad=(*before, there, *gathers, copies),
        rows=wide,
        saved_bytes=_saved(shard, rows),
    )


def dispatches_fp8(shard: Shard) -> bool:
    """Whether experts' products read what was dispatched as it is."""
    software = shard.software
    return (
        shard.narrow == NARROW["fp8"]
        and software.moe_dispatch_fp8
        and software.moe_dispatcher == "flex"
        and shard.ep > 1
    )


def _routed(
    shard: Shard, moe: MoeSpec, x: Tensor, plain: KernelLaunch, nodes: int, load: float
) -> tuple[KernelLaunch, KernelLaunch]:
    """Dispatch and combine by kernels of their own: bytes for all nodes of a token, SMs that are held."""
    reached = owners_hit(moe, nodes) if nodes > 1 else 1.0
    software = shard.software
    gpus = owners_hit(moe, shard.ep) / reached
    by = software.moe_exchange_kernels
    tokens = round(x.shape[0] * reached * load)
    wide = x.shape[1] * x.num_bytes // x.numel
    narrow = fp8_row_bytes(x.shape[1]) if dispatches_fp8(shard) else wide

    def exchange(way: str, token_bytes: int) -> KernelLaunch:
        how = TokenExchange(software.moe_exchange_sms, gpus, by)
        if nodes == 1 and by == DEEPEP:
            how = replace(how, token_bytes=token_bytes, sums=way == "combine")
        return replace(plain, collective=str(how), num_bytes=tokens * token_bytes, name=f"{by}::{way}")

    return exchange("dispatch", narrow), exchange("combine", wide)


def _turned(steps: Sequence[KernelLaunch]) -> list[KernelLaunch]:
    """The way back: sums where there were gathers."""
    back = []
    for step in reversed(steps):
        if step.collective == "all_gather":
            name = "reduce_scatter"
            step = replace(step, name=f"nccl::{name}", collective=name, reduce_op="sum")
        back.append(step)
    return back


def _sorting(
    shard: Shard, name: str, ins: list[Tensor], outs: list[Tensor], module: str
) -> list[KernelLaunch]:
    """Sorting tokens by expert or back in one kernel, or by index, with a weighting apart if need be.

    PyTorch's kernels by index compute an address for every element (136 us for 4,096 rows of 5,120 in bf16 on
    an H100, where plain copies take 36: pytorch/pytorch issue 151612); sums by index are taken to be as fast.
    """
    if shard.software.moe_permute_fusion:
        return [compute(name, ins, outs, op_class="copy", module=module)]
    rows = max(*ins, *outs, key=lambda tensor: tensor.numel)
    index = "aten::index_select" if name == "moe_permute" else "aten::scatter_add_"
    wide = _weighed(shard, rows)
    weighted = [compute("aten::mul.Tensor", [wide], [wide], module=module)]
    if wide != rows:
        cast = compute("aten::_to_copy", [rows], [wide], module=module)
        weighted = [cast, *weighted, compute("aten::_to_copy", [wide], [rows], module=module)]
    # Its address and its value of each row that moves, whichever side has more rows.
    moved = compute(index, [rows], [rows], op_class="embedding_fwd", module=module)
    if shard.software.moe_weighted_early:
        return [moved]
    return [moved, *weighted] if name == "moe_permute" else [*weighted, moved]
