"""Attention that keeps its scores on chip: what the kernel reads, writes, computes and saves.

Bytes: forward reads q, k, v and writes the output and one fp32 log-sum-exp per row; backward reads q, k, v,
the output, its gradient and the log-sum-exp and writes three gradients (FlashAttention, arXiv 2205.14135,
section 3).  Flops: 4 b h s^2 d forward, two products; 10 b h s^2 d backward, five products, since the
scores are computed again (2.5x, as torch.utils.flop_counter counts it).  A causal mask halves the real work
of the square; as everywhere in the graph, flops count all of it.  Kernels without a mask are named
``..._full_...``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simcore.graph.graph import Graph
from simcore.graph.ops import shapes_text
from simcore.graph.passes.match import Match
from simcore.graph.passes.rewrite import Replacement, forward_templates
from simcore.graph.passes.view import GraphView, Operand, element_bytes
from simcore.records import dataclass

_LSE_BYTES = 4  # one fp32 per row
_PRODUCTS = frozenset({"bmm", "baddbmm"})
_SOFTMAX = frozenset(
    {"_softmax", "_softmax_backward_data", "scaled_masked_softmax_fwd", "scaled_masked_softmax_bwd"}
)
_MASKS = (_SOFTMAX - {"_softmax", "_softmax_backward_data"}) | {"masked_fill", "masked_fill_", "where"}


@dataclass(frozen=True)
class _Sizes:
    """Query and key/value shapes ``[batch, heads, seq, head_dim]`` and bytes per element."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    width: int

    def tensor(self, shape: tuple[int, ...]) -> Operand:
        """A tensor of that shape in the kernel's dtype."""
        return Operand(shape, math.prod(shape) * self.width)

    @property
    def lse(self) -> Operand:
        """Log-sum-exp of the scores, one per row."""
        return Operand(self.query[:3], math.prod(self.query[:3]) * _LSE_BYTES)


def attention_replacements(
    view: GraphView, forwards: Sequence[Match], backwards: Sequence[Match], family: str = "flash"
) -> list[Replacement]:
    """Replacements for matched attention, forward and backward together: the one saves for the other.

    ``family`` ("flash", "cudnn") is whose kernels they are, by which the cost model prices them.
    """
    graph = view.graph
    backward_of = {row: match for match in backwards for row in match.members}
    saved_frees = _frees_by_owner(graph, forwards)
    made = []
    for match in forwards:
        sizes = _sizes(view, match.members)
        output = sizes.tensor(sizes.query)
        columns: dict[str, str | int] = {
            "name": _kernel_name(view, match, family),
            "op_class": match.kernel.op_class,
            "in_shapes": shapes_text([output.shape, *[sizes.tensor(sizes.key).shape] * 2]),
            "out_shapes": shapes_text([output.shape, sizes.lse.shape]),
            "flops": sum(int(graph.ops.flops[row]) for row in match.members),
            "bytes_read": output.num_bytes + 2 * sizes.tensor(sizes.key).num_bytes,
            "bytes_written": output.num_bytes + sizes.lse.num_bytes,
            "dtype": graph.ops.dtype[match.members[0]],
            "recorded_ps": -1,
        }
        dropped, users = _internal_releases(graph, match, saved_frees, backward_of)
        kept_alloc = view.alloc_bytes[match.members[-1]]
        saved = tuple((sizes.lse.num_bytes, user.anchor) for user in users[:1])
        columns["alloc_bytes"] = kept_alloc + sum(num_bytes for num_bytes, _ in saved)
        made.append(Replacement(match.members, match.anchor, columns, dropped, saved))
    return made + [_backward(view, match, family) for match in backwards]


def _backward(view: GraphView, match: Match, family: str) -> Replacement:
    graph = view.graph
    sizes = _sizes(view, match.members)
    query, key = sizes.tensor(sizes.query), sizes.tensor(sizes.key)
    reads, writes = [query, query, key, key, query, sizes.lse], [query, key, key]
    inside = set(match.members)
    freed = [
        release for row in match.members for release in view.releases.get(row, ()) if release.after in inside
    ]
    allocated = sum(view.alloc_bytes[row] for row in match.members)
    columns: dict[str, str | int] = {
        "name": _kernel_name(view, match, family),
        "op_class": match.kernel.op_class,
        "in_shapes": shapes_text(tensor.shape for tensor in reads),
        "out_shapes": shapes_text(tensor.shape for tensor in writes),
        # The products that the trace shows are dV, dP, dQ, dK; the kernel also computes the scores again.
        "flops": sum(int(graph.ops.flops[row]) for row in match.members) * 5 // 4,
        "bytes_read": sum(tensor.num_bytes for tensor in reads),
        "bytes_written": sum(tensor.num_bytes for tensor in writes),
        "alloc_bytes": max(0, allocated - sum(release.num_bytes for release in freed)),
        "dtype": graph.ops.dtype[match.members[0]],
        "recorded_ps": -1,
    }
    return Replacement(match.members, match.anchor, columns, frozenset(release.index for release in freed))


def _kernel_name(view: GraphView, match: Match, family: str) -> str:
    """The kernel's name: memory-efficient in fp32, "full" when nothing masks the scores."""
    dtype = view.graph.ops.dtype[match.members[0]]
    # Kernels of both families exist for 16 and 8 bit types only.
    name = match.kernel.name.replace("flash", "efficient" if element_bytes(dtype) >= 4 else family)
    masked = any(view.name(row) in _MASKS for row in match.members)
    return name if masked else name.replace("attention", "attention_full")


def _sizes(view: GraphView, members: Sequence[int]) -> _Sizes:
    """Shapes of q and of k, v from the softmax (batch and heads) and the products' operands."""
    width = element_bytes(view.graph.ops.dtype[members[0]])
    softmax = next(row for row in members if view.name(row) in _SOFTMAX)
    scores = next(t.shape for t in view.inputs(softmax) if len(t.shape) >= 3)
    rows, columns = scores[-2], scores[-1]
    heads = math.prod(scores[:-2])
    batch = scores[0] if len(scores) == 4 else 1
    product = next(row for row in members if view.name(row) in _PRODUCTS)
    total = sum(int(view.graph.ops.flops[row]) for row in members if view.name(row) in _PRODUCTS)
    count = sum(view.name(row) in _PRODUCTS for row in members)
    # One product is 2 b h s_q s_k d flops; without flops take the operand that is no score matrix.
    dim = total // (2 * count * heads * rows * columns) if total else 0
    if dim == 0:
        operand = next(t.shape for t in view.inputs(product) if t.shape[-2:] != (rows, columns))
        dim = operand[-1] if operand[-2] == rows else operand[-2]
    lead = (batch, heads // batch)
    return _Sizes((*lead, rows, dim), (*lead, columns, dim), width)


def _frees_by_owner(graph: Graph, forwards: Sequence[Match]) -> dict[int, list[int]]:
    """By op row of a forward match: free-table rows of its storage, in its template or in a backward's."""
    wanted = {row for match in forwards for row in match.members}
    owners = forward_templates(graph)
    found: dict[int, list[int]] = {}
    frees = graph.frees
    for index, (template, owner, scope) in enumerate(
        zip(frees.template.tolist(), frees.owner.tolist(), frees.owner_scope.tolist(), strict=True)
    ):
        if owner < 0:
            continue
        rows = [owner]
        if scope == 1:
            rows = [int(graph.template_start[forward]) + owner for forward in owners.get(template, ())]
        for row in rows:
            if row in wanted:
                found.setdefault(row, []).append(index)
    return found


def _internal_releases(
    graph: Graph, match: Match, frees: dict[int, list[int]], backward_of: dict[int, Match]
) -> tuple[frozenset[int], list[Match]]:
    """Releases of storage that the kernel never makes, and the backward kernels that they served.

    The last op's storage is the output, which stays.
    """
    dropped: set[int] = set()
    users: list[Match] = []
    for row in match.members[:-1]:
        for index in frees.get(row, ()):
            dropped.add(index)
            user = backward_of.get(int(graph.frees.after[index]))
            if user is not None and user not in users:
                users.append(user)
    return frozenset(dropped), users
