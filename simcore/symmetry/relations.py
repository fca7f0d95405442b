"""Who communicates with whom over which links, as arrays: what symmetry is searched in.

A *relation* holds all groups of one process-group family that a job uses, or all pairs of ranks that one
kind of send connects.  Its instances are rows of a matrix of ranks.  What a plan does to its members' own
ports and to links that several GPUs share is worked out once per pattern (where the members sit relative to
each other) and carried over to all instances of the pattern by array arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import SEND_RECV
from simcore.collectives.plan import LinkUses
from simcore.distinct import distinct
from simcore.graph import Graph, OpKind, ProcessGroup
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from simcore.symmetry.colours import first_seen, unique_rows
from simcore.symmetry.fabric import Fabric

if TYPE_CHECKING:
    from simcore.collectives.plan import CollectivePlan, Planner
    from simcore.hardware import Topology


#: By call, what an instance puts on own ports of one of its members: (number of the port, weight) of each.
_OwnLoads = tuple[tuple[tuple[int, float], ...], ...]


@dataclass(frozen=True)
class SharedLoads:
    """Loads on links other than the members' own ports: switches, shared NICs, ports of GPUs on the way.

    Instance ``instance[i]`` puts ``weight[i]`` link bytes per byte of progress on ``link[i]``, from
    ``inputs[i]`` NICs (see :class:`~simcore.collectives.plan.LinkUse`); ``call[i]`` says of which of the
    relation's calls.
    """

    instance: IntArray
    link: IntArray
    weight: npt.NDArray[np.float64]
    call: IntArray
    inputs: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Relation:
    """All instances of one process-group family (``delta`` 0) or of sends ``delta`` members further on.

    ``members[i]`` are the ranks of instance ``i``, in group order (for sends: source, destination);
    ``calls`` are the (collective, bytes) that the job issues on them. ``colour[i]`` numbers what its plans
    look like (latency, rate, algorithm); ``example[i]`` is an instance with the same plans but for ranks and
    links.  ``role[i, k]`` numbers what its plans put on the own ports of member ``k``, which ``own_loads``
    says by role and call: (port, weight) of each.
    """

    group: str
    delta: int
    calls: tuple[tuple[str, int], ...]
    members: IntArray
    colour: IntArray
    example: IntArray
    role: IntArray
    own_loads: tuple[_OwnLoads, ...]
    own_links: IntArray
    shared: SharedLoads

    def loading(self, chosen: npt.NDArray[np.bool_]) -> Relation:
        """The relation with loads on shared links that are ``chosen``, by link, and no others."""
        shared = self.shared
        kept = chosen[shared.link]
        parts = {part.name: getattr(shared, part.name)[kept] for part in fields(shared)}
        return replace(self, shared=SharedLoads(**parts))


def relations_of(graph: Graph, topology: Topology, planner: Planner) -> list[Relation]:
    """All relations that the job's communication ops use, in a stable order."""
    ops = graph.ops
    used = (ops.kind == OpKind.COLLECTIVE) | (ops.kind == OpKind.SEND)
    delta_of = np.where(ops.kind == OpKind.SEND, ops.peer_delta, 0)
    columns = np.stack([ops.group.codes, delta_of, ops.collective.codes, ops.num_bytes], axis=1)[used]
    calls: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for group, delta, collective, num_bytes in sorted(set(map(tuple, columns.tolist()))):
        what = (ops.collective.values[collective] or SEND_RECV.name, num_bytes)
        calls.setdefault((ops.group.values[group], delta), []).append(what)
    fabric = Fabric(topology, graph.world_size)
    found = []
    for (name, delta), wanted in sorted(calls.items()):
        members = group_members(graph.groups[name], graph.world_size)
        if delta:
            members = np.stack([members, np.roll(members, -delta, axis=1)], axis=-1).reshape(-1, 2)
            members = members[_senders(graph, name, delta)[members[:, 0]]]
        found.append(_relation(name, delta, members, sorted(wanted), fabric, planner))
    return found


def group_members(family: ProcessGroup, world_size: int) -> IntArray:
    """All groups of a family as a matrix of ranks, one row each; groups that leave the world are dropped."""
    if family.explicit:
        members = np.array(family.explicit, dtype=np.int64)
    else:
        offsets, bases = np.zeros(1, dtype=np.int64), np.full(1, family.offset, dtype=np.int64)
        for size, stride in family.dims:
            offsets = (np.arange(size)[:, None] * stride + offsets).reshape(-1)
        for size, stride in family.base_dims:
            bases = (np.arange(size)[:, None] * stride + bases).reshape(-1)
        members = np.sort(bases)[:, None] + offsets
    return members[(members < world_size).all(axis=1)]


def _senders(graph: Graph, group: str, delta: int) -> npt.NDArray[np.bool_]:
    """Mask over ranks: whose program sends to the member ``delta`` further on."""
    ops = graph.ops
    rows = ops.group.equals(group) & (ops.kind == OpKind.SEND) & (ops.peer_delta == delta)
    template_of = np.repeat(np.arange(graph.num_templates), np.diff(graph.template_start))
    sending = set(template_of[rows].tolist())
    programs = [bool(sending.intersection(program.template.tolist())) for program in graph.programs]
    return np.array(programs, dtype=np.bool_)[graph.program_of_rank]


def _relation(
    name: str,
    delta: int,
    members: IntArray,
    calls: list[tuple[str, int]],
    fabric: Fabric,
    planner: Planner,
) -> Relation:
    """Plan one instance per pattern; carry its loads over to the others."""
    gpus = fabric.gpu[members]
    pattern = _patterns(gpus, fabric, in_order=not delta)
    example = np.unique(pattern, return_index=True)[1]
    colours, roles, uses = [], [], []
    for instance in example.tolist():
        ranks = tuple(members[instance].tolist())
        plans = [
            planner.plan_p2p(size, *ranks)
            if delta and what == SEND_RECV.name
            else planner.plan(what, size, ranks)
            for what, size in calls
        ]
        colours.append(tuple(_figures(plan) for plan in plans))
        role, load = _split_loads(plans, gpus[instance], fabric)
        roles.append(role)
        uses.append(load)
    of_roles = [role for of_members in roles for role in of_members]
    role_number = _number(of_roles)
    roles_by_pattern = np.array(role_number, dtype=np.int64).reshape(len(example), -1)
    colour_by_pattern = np.array(_number(colours), dtype=np.int64)
    carries = np.zeros((len(example), members.shape[1], fabric.own.shape[1]), dtype=np.bool_)
    for number, of_members in enumerate(roles):
        for k, by_call in enumerate(of_members):
            for loads in set(by_call):
                for port, _ in loads:
                    carries[number, k, port] = True
    return Relation(
        name, delta, tuple(calls), members, colour_by_pattern[pattern], example[pattern],
        roles_by_pattern[pattern], tuple(dict.fromkeys(of_roles)),
        distinct(fabric.own[gpus][carries[pattern]]), _spread(uses, pattern, gpus, fabric),
    )  # fmt: skip


def _patterns(gpus: IntArray, fabric: Fabric, *, in_order: bool) -> IntArray:
    """Number of each instance's pattern: same domains, nodes, GPUs, leaves (relative), capacities, latencies.

    A plan may depend on GPUs of the members' nodes that are no members (what traffic between rails passes),
    so whole nodes count; positions within a node matter only where its GPUs differ, and where they decide
    which members share a NIC or leaf.  ``in_order``: rings and trees follow nodes and GPUs in ascending
    order, wherever placement has put the members.
    """
    if not fabric.is_alike or len(gpus) == 1:
        return np.arange(len(gpus), dtype=np.int64)
    node_figures, uneven = fabric.node_figures
    place = gpus % fabric.per_node
    columns = [
        first_seen(fabric.domain[gpus]),
        first_seen(fabric.node[gpus]),
        first_seen(place),
        first_seen(fabric.leaf[gpus]),
        first_seen(fabric.leaf_group[gpus]),
        node_figures[gpus],
        np.where(uneven[gpus].any(axis=1, keepdims=True), place, -1),
    ]
    if not fabric.topology.ports.is_exclusive:
        columns.append(first_seen(fabric.port[gpus]))
    if in_order:
        columns.append(np.argsort(np.argsort(gpus, axis=1), axis=1))
    columns += [first_seen(fabric.shared[gpus][..., k]) for k in range(fabric.shared.shape[1])]
    return unique_rows(np.concatenate(columns, axis=1))


def _figures(plan: CollectivePlan) -> tuple[object, ...]:
    """What the engine reads of a plan, apart from ranks and links."""
    return (
        plan.algorithm, plan.protocol, plan.channels, plan.latency_ps, plan.volume_bytes,
        plan.rate_cap_bytes_per_s, plan.hbm_bytes_per_byte, plan.alone_ps, plan.between_ps, plan.feed_weight,
    )  # fmt: skip


class _Load(NamedTuple):
    """Load of an instance on a link that is no member's own, in words that hold for its whole pattern.

    The link is a port of the GPU on the node of member ``on`` at the place of member ``at``; with ``at``
    :data:`_INSIDE` a link inside the node of member ``on``; with :data:`_LITERAL` the link itself.
    """

    call: int
    on: int
    at: int
    link: int
    weight: float
    inputs: float


_INSIDE: Final = -1
_LITERAL: Final = -2


def _split_loads(
    plans: list[CollectivePlan], gpus: IntArray, fabric: Fabric
) -> tuple[list[_OwnLoads], list[_Load]]:
    """Loads of an instance: per member and call on its own ports (port, weight); and on all other links.

    A link that is no member's own is inside a member's node, or a port of the GPU that sits on the node of
    one member, at the place of another: the members' own shared ports, or what traffic between rails passes
    on its way.
    """
    split: dict[int, tuple[list[tuple[tuple[int, float], ...]], list[_Load]]] = {}  # by what calls share
    own = fabric.own[gpus]
    order = np.argsort(own, axis=None)
    sorted_own = np.append(own.reshape(-1)[order], -1)
    places: dict[int, tuple[int, int, int]] = {}
    of_calls, loads = [], list[_Load]()
    for call, plan in enumerate(plans):
        if id(plan.links) not in split:
            uses = LinkUses.of(plan.links)
            at = np.searchsorted(sorted_own[:-1], uses.link)
            mine = sorted_own[at] == uses.link
            if not places and not mine.all():
                places = _places(gpus, fabric)
            k, port = np.divmod(order[at[mine]], own.shape[1])
            roles: list[list[tuple[int, float]]] = [[] for _ in range(len(gpus))]
            for member, *role in zip(k.tolist(), port.tolist(), uses.weight[mine].tolist(), strict=True):
                roles[member].append((role[0], role[1]))
            rest = (column[~mine].tolist() for column in (uses.link, uses.weight, uses.inputs))
            others = [
                _Load(call, *_place(link, places, gpus, fabric), weight, inputs)
                for link, weight, inputs in zip(*rest, strict=True)
            ]
            split[id(plan.links)] = [tuple(role) for role in roles], others
        of_members, others = split[id(plan.links)]
        of_calls.append(of_members)
        loads += [load._replace(call=call) for load in others]
    return list(zip(*of_calls, strict=True)), loads


def _places(gpus: IntArray, fabric: Fabric) -> dict[int, tuple[int, int, int]]:
    """Where links are that members share: (on, at, link) as :class:`_Load` has them."""
    places: dict[int, tuple[int, int, int]] = {}
    own = fabric.own.shape[1]
    shared, first = np.unique(fabric.shared[gpus], return_index=True)
    for link, at in zip(shared.tolist(), first.tolist(), strict=True):
        k, port = divmod(at, fabric.shared.shape[1])
        places[link] = (k, k, own + port)
    for k in np.unique(fabric.node[gpus], return_index=True)[1].tolist():
        for number, link in enumerate(fabric.node_links[fabric.node[gpus[k]]].tolist()):
            places[link] = (k, _INSIDE, number)
    return places


def _place(
    link: int, places: dict[int, tuple[int, int, int]], gpus: IntArray, fabric: Fabric
) -> tuple[int, int, int]:
    if not fabric.is_alike:
        return places.get(link, (0, _LITERAL, link))
    if link not in places:
        _add_places_between(places, gpus, fabric)
    return places[link]


def _add_places_between(places: dict[int, tuple[int, int, int]], gpus: IntArray, fabric: Fabric) -> None:
    """Ports of GPUs on the members' nodes at the members' places, whoever runs there."""
    nodes, locals_ = fabric.node[gpus], gpus % fabric.per_node
    for k in np.unique(nodes, return_index=True)[1].tolist():
        for j in np.unique(locals_, return_index=True)[1].tolist():
            gpu = int(nodes[k] * fabric.per_node + locals_[j])
            for port, link in enumerate(fabric.ports[gpu].tolist()):
                places.setdefault(link, (k, j, port))


def _spread(uses: list[list[_Load]], pattern: IntArray, gpus: IntArray, fabric: Fabric) -> SharedLoads:
    """Those loads of all instances, from those of one instance per pattern."""
    instances, links, weights, calls, all_inputs = [], [], [], [], []
    order = np.argsort(pattern, kind="stable")
    bounds = np.searchsorted(pattern[order], np.arange(len(uses) + 1))
    for load, begin, end in zip(uses, bounds, bounds[1:], strict=False):
        mine = order[begin:end]
        for call, on, at, link, weight, inputs in load:
            node = fabric.node[gpus[mine, on]]
            if at == _LITERAL:
                links.append(np.full(len(mine), link, dtype=np.int64))
            elif at == _INSIDE:
                links.append(fabric.node_links[node, link])
            else:
                place = gpus[mine, at] % fabric.per_node
                links.append(fabric.ports[node * fabric.per_node + place, link])
            instances.append(mine)
            weights.append(np.full(len(mine), weight))
            calls.append(np.full(len(mine), call, dtype=np.int64))
            all_inputs.append(np.full(len(mine), inputs))
    if not instances:
        nothing = np.zeros(0, dtype=np.int64)
        return SharedLoads(nothing, nothing, np.zeros(0), nothing, np.zeros(0))
    return SharedLoads(*(np.concatenate(part) for part in (instances, links, weights, calls, all_inputs)))


def _number(values: Sequence[object]) -> list[int]:
    """Numbers of values by first appearance."""
    index: dict[object, int] = {}
    return [index.setdefault(value, len(index)) for value in values]
