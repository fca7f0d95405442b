"""``apply_kernels``: the kernels that a given build of the framework launches for a traced program."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.errors import InputError, nearest
from simcore.graph.graph import Graph
from simcore.graph.passes.attention import attention_replacements
from simcore.graph.passes.match import Match, Matcher
from simcore.graph.passes.patterns import ATTENTION_BACKWARD, ATTENTION_FORWARD, MEGATRON, FusedKernel
from simcore.graph.passes.rewrite import Replacement, rewrite
from simcore.graph.passes.traffic import border, total
from simcore.graph.passes.view import GraphView

#: Name -> what it stands for, from the plainest to the most fused.
MAPPINGS: Final[dict[str, str]] = {
    "unfused": "every aten op is a kernel, as traced",
    "megatron": "Megatron-LM's fused kernels, jit fusion, apex optimizer, gradient accumulation in GEMMs",
    "flash": "the same with attention as one kernel (FlashAttention; memory-efficient attention in fp32)",
    "cudnn": "the same as Transformer Engine chooses it (cuDNN's from Hopper on, FlashAttention's before)",
}

#: How much a mapping fuses: a more fused graph cannot become a less fused one, or one of another attention.
_FUSED: Final = {"unfused": 0, "megatron": 1, "flash": 2, "cudnn": 2}

_WGRAD = FusedKernel(
    "wgrad_gemm_accum",
    "gemm",
    "",
    ("bwd",),
    "Megatron gradient_accumulation_fusion (fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32)",
)


def usual_kernels(graph: Graph) -> str:
    """The mapping of the build that runs a traced program when nothing is said: what is applied, or else:

    Megatron-Core runs attention in Transformer Engine (its default layer spec), which takes cuDNN's fused
    kernels in 16 bits on Hopper, FlashAttention on Ampere, and its unfused path in fp32, for which neither
    has kernels (TransformerEngine, selection of the attention backend); its own fusions are compiled, and its
    trace shows what is inside of them.  Other programs launch what their trace shows.
    """
    work = graph.workload
    applied = str(work.options.get("kernels", ""))
    if applied in MAPPINGS:
        return applied
    if work.framework != "megatron-core":
        return "unfused"
    return "cudnn" if work.precision in ("bf16", "fp16") else "megatron"


def apply_kernels(graph: Graph, kernels: str) -> Graph:
    """``graph`` with its op groups mapped to the kernels of a build, one of :data:`MAPPINGS`.

    Unmatched ops stay.  ``workload.options["kernels"]`` says what was applied; applying a mapping twice
    changes nothing, and "flash" or "cudnn" may follow "megatron".  Memory follows: storage between fused ops
    vanishes.
    The graph's recorded memory profile stays that of the traced program.
    Errors: InputError for an unknown mapping, or when ``graph`` is already mapped to a more fused one.
    """
    if kernels not in MAPPINGS:
        raise InputError(f"unknown kernels {kernels!r}{nearest(kernels, MAPPINGS)}")
    applied = str(graph.workload.options.get("kernels", "unfused"))
    if kernels == applied:
        return graph
    if applied in MAPPINGS and _FUSED[applied] >= _FUSED[kernels]:
        raise InputError(f"the graph's kernels are {applied!r} already; {kernels!r} needs the traced graph")
    if kernels == "unfused":
        return graph
    if kernels in ("flash", "cudnn"):
        graph = _fuse_attention(graph, kernels)
    graph = _fuse(graph)
    options = {**graph.workload.options, "kernels": kernels}
    return replace(graph, workload=replace(graph.workload, options=options))


def fuse_regions(graph: Graph) -> Graph:
    """``graph`` with the regions that ``torch.compile`` compiles as their kernels: chains of pointwise ops,
    norms and softmax included, become one that reads and writes what crosses its border.

    Products, attention and everything outside of the regions stay.
    """
    view = GraphView(graph)
    matches = Matcher(view).find_regions(compiled=True)
    return rewrite(graph, [_replacement(view, match) for match in matches])


def _fuse_attention(graph: Graph, family: str) -> Graph:
    view = GraphView(graph)
    matcher = Matcher(view)
    forwards, backwards = list(matcher.find(ATTENTION_FORWARD)), list(matcher.find(ATTENTION_BACKWARD))
    return rewrite(graph, attention_replacements(view, forwards, backwards, family))


def _fuse(graph: Graph) -> Graph:
    view = GraphView(graph)
    matcher = Matcher(view)
    matches = list(matcher.find_accumulations(_WGRAD))
    for kernel in MEGATRON:
        if not graph.workload.options.get(kernel.unless):
            matches += matcher.find(kernel)
    matches += matcher.find_regions()
    return rewrite(graph, [_replacement(view, match) for match in matches])


def _replacement(view: GraphView, match: Match) -> Replacement:
    """The kernel for a match whose traffic is what crosses its border."""
    graph, inside = view.graph, set(match.members)
    ops = graph.ops
    # A product in bf16 that adds to an fp32 gradient runs in bf16: work decides the dtype, then traffic.
    heaviest = max(
        match.members,
        key=lambda row: (int(ops.flops[row]), int(ops.bytes_read[row] + ops.bytes_written[row])),
    )
    placed = next((row for row in match.members if ops.layer[row] >= 0), match.members[0])
    columns: dict[str, str | int] = {
        "name": match.kernel.name,
        "op_class": match.kernel.op_class,
        "flops": sum(int(ops.flops[row]) for row in match.members),
        "module": ops.module[placed].split("/fused:")[0],
        "layer": int(ops.layer[placed]),
        "dtype": ops.dtype[heaviest],
        "blocking": max(int(ops.blocking[row]) for row in match.members),
        "recorded_ps": -1,
        **(total if match.kernel.independent else border)(view, match.members).columns(),
    }
    dropped = frozenset(
        release.index
        for row in match.members
        for release in view.releases.get(row, ())
        if release.after in inside
    )
    return Replacement(match.members, match.anchor, columns, dropped)
