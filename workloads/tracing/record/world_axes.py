"""The axes of a program's world, between the strides of its process groups, and what it uses each for (tp,
pp, dp, cp, ep).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from simcore.graph.groups import ProcessGroup
from simcore.graph.ops import OpKind
from simcore.records import dataclass
from workloads.tracing.fake.group_names import described_family
from workloads.tracing.record.assemble import RankTrace
from workloads.tracing.record.recording import COLUMNS, GROUP, KIND, MODULE, PHASE

_COLLECTIVE, _NUM_BYTES, _PEER = (COLUMNS.index(name) for name in ("collective", "num_bytes", "peer_delta"))

#: What the field calls an axis -> words by which programs call groups along it.
_NAMES = {
    "tp": ("tp", "tensor", "tensor_parallel", "tensor_model_parallel"),
    "pp": ("pp", "pipe", "pipeline", "pipeline_parallel", "pipeline_model_parallel"),
    "cp": ("cp", "context", "context_parallel", "sp", "sequence_parallel"),
    "ep": ("ep", "expert_parallel", "expert_model_parallel"),
    "dp": ("dp", "data", "data_parallel", "fsdp", "dp_shard", "dp_replicate", "shard", "replicate"),
}
#: Phases in which gradients are reduced: as they come, or behind the last backward pass.
_REDUCING = ("grad_sync", "optimizer")

#: (collective, phase, module, bytes)
_Call = tuple[str, str, str, int]


@dataclass(frozen=True)
class WorldAxis:
    """An axis of the world of ``size`` places, neighbours ``stride`` ranks apart; ``stages``: its places are
    the stages of a pipeline.
    """

    size: int
    stride: int
    stages: bool = False

    def place(self, rank: int) -> int:
        """Where ``rank`` is."""
        return rank // self.stride % self.size


def nested_axes(
    strides: Iterable[int], world_size: int, stages: Callable[[WorldAxis], bool] = lambda _: False
) -> tuple[WorldAxis, ...]:
    """Axes between consecutive ``strides``, as far as each divides the next, innermost first."""
    chain = [1]
    for stride in sorted({*strides, world_size}):
        if stride > chain[-1] and stride % chain[-1] == 0 and world_size % stride == 0:
            chain.append(stride)
    found = [WorldAxis(outer // inner, inner) for inner, outer in pairwise(chain)] or [WorldAxis(1, 1)]
    return tuple(WorldAxis(one.size, one.stride, stages(one)) for one in found)


def axes_of(
    families: Mapping[str, ProcessGroup], traces: Sequence[RankTrace], world_size: int
) -> tuple[WorldAxis, ...]:
    """Axes between the strides of the families of which every rank has a group.  Along pipeline stages ranks
    send each other tensors of the forward and backward pass outside of modules (inside are rings of context
    parallelism), and do not all do the same: the first gets nothing, or reads, and the last makes the loss.
    """
    strides: set[int] = set()
    for family in families.values():
        if not family.explicit and all(map(family.contains, range(world_size))):
            for size, stride in (*family.dims, *family.base_dims):
                strides |= {stride, stride * size}
    passed = {
        (one.rank, peer)
        for one in traces
        for peer, phase, module in _peers(one)
        if phase in ("fwd", "bwd") and not module
    }
    programs = {one.rank: one.program.digest() for one in traces}
    unlike = [pair for pair in combinations(programs, 2) if programs[pair[0]] != programs[pair[1]]]

    def stages(axis: WorldAxis) -> bool:
        return all(
            any(axis.place(one) != axis.place(other) for one, other in pairs) for pairs in (passed, unlike)
        )

    return nested_axes(strides, world_size, stages)


def parallel_dims(
    trace: RankTrace, axes: Sequence[WorldAxis], families: Mapping[str, ProcessGroup]
) -> tuple[dict[str, int], int]:
    """Sizes of the axes by name, whose product is the world, and the degree of expert parallelism, which is
    a part of data parallelism (1: none); ``trace``: of rank 0.

    An axis is what the program calls a group along it.  Without such a name, stages are pp; where calls
    inside of modules go, it is tp (collectives), cp (a ring, or all-to-alls of attention) or ep (other
    all-to-alls); everything else, and where gradients are reduced, is dp.
    """
    rings = [peer for peer, _, module in _peers(trace) if module]
    sizes: dict[str, int] = {}
    experts = 1
    for axis in axes:
        along = [name for name, family in families.items() if _is_along(family, axis, axes)]
        words = {described_family(_unnumbered(name).upper()) for name in along}
        named = next((role for role, known in _NAMES.items() if words.intersection(known)), "")
        role = "pp" if axis.stages else named or _used_for(trace, axis, along, rings)
        if role == "ep":
            experts *= axis.size
        role = "dp" if role == "ep" else role
        sizes[role] = sizes.get(role, 1) * axis.size
    return {role: size for role, size in sizes.items() if size > 1} or {"dp": 1}, experts


def _peers(trace: RankTrace) -> Iterator[tuple[int, str, str]]:
    """Ranks that one sends to or receives from, each with the phase and the module that does ("": none)."""
    columns = zip(*(trace.program.column(at) for at in (KIND, GROUP, _PEER, PHASE, MODULE)), strict=True)
    for kind, group, delta, phase, module in sorted(set(columns)):
        if kind in (OpKind.SEND, OpKind.RECV):
            members = trace.groups[str(group)]
            yield members[(members.index(trace.rank) + int(delta)) % len(members)], str(phase), str(module)


def _is_along(family: ProcessGroup, axis: WorldAxis, axes: Sequence[WorldAxis]) -> bool:
    if family.explicit or not family.contains(0):
        return False
    members = family.ranks_of(0)
    spanned = [one for one in axes if any(one.place(rank) for rank in members)]
    return spanned == [axis] and len(members) == axis.size


def _unnumbered(name: str) -> str:
    """A group's name without the number that tells it from others of its description."""
    base, _, number = name.rpartition(".")
    return base if number.isdigit() else name


def _used_for(trace: RankTrace, axis: WorldAxis, groups: Collection[str], rings: Sequence[int]) -> str:
    calls = _calls(trace, groups)
    if any(axis.place(peer) != axis.place(trace.rank) for peer in rings):
        return "cp"
    inside = [call for call in calls if call[1] not in _REDUCING and call[2]]
    exchanging = [module for collective, _, module, _ in inside if collective == "all_to_all"]
    if exchanging:
        return "cp" if any("att" in module.lower() for module in exchanging) else "ep"
    reduced = sum(size for _, phase, _, size in calls if phase in _REDUCING)
    forward = any(phase != "bwd" for _, phase, _, _ in inside)  # else shards are kept for the backward pass
    return "tp" if forward and reduced < trace.num_trained else "dp"


def _calls(trace: RankTrace, groups: Collection[str]) -> list[_Call]:
    columns = (_COLLECTIVE, PHASE, MODULE, _NUM_BYTES, GROUP)
    rows = zip(*(trace.program.column(at) for at in columns), strict=True)
    return [
        (str(call), str(phase), str(module), int(size))
        for call, phase, module, size, group in rows
        if call and group in groups
    ]
