"""Which ranks must behave alike: the coarsest equitable partition of a job on its hardware.

Note [Equitable partition]
    Ranks start with equal colour if they run the same program on the same kind of GPU, links that carry
    anything if their capacity and latency are equal.  A rank and the ports it owns take in each other's
    colours.  A group is coloured by what its plans look like, by the colours and roles of its members and by
    the other links it loads; such a link by the groups that load it, each with its weight.  Ranks take in
    the colours of their groups, and so on until no colour splits any more (colour refinement; McKay and
    Piperno, J. Symb. Comput. 60, 2014).  Links that are never full (uplinks of a fabric that does not block)
    hold up nobody, so that nobody is told apart by them.  Then every rank of a class sees the same numbers of
    every other class through the same kind of group and link, so by induction over time all of them do the
    same at the same time, and one can stand for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcore.graph import Graph
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from simcore.symmetry.colours import add_at, mix, refined, unique_rows
from simcore.symmetry.fabric import Fabric
from simcore.symmetry.relations import Relation, relations_of

if TYPE_CHECKING:
    from simcore.collectives.plan import Planner
    from simcore.hardware import Topology


@dataclass(frozen=True)
class Partition:
    """Classes of ranks that behave alike, numbered by their lowest rank, and what connects them.

    ``instance_class[r][i]`` is the class of instance ``i`` of ``relations[r]``; ``link_class`` that of each
    link (-1 where no shared load matters).
    """

    class_of: IntArray
    representatives: IntArray
    sizes: IntArray
    relations: tuple[Relation, ...]
    instance_class: tuple[IntArray, ...]
    link_class: IntArray

    @property
    def num_classes(self) -> int:
        """Distinct classes."""
        return len(self.representatives)


def partition(
    graph: Graph,
    topology: Topology,
    planner: Planner,
    variant_of_rank: IntArray | None = None,
    *,
    fold: bool = True,
) -> Partition:
    """Classes of the ranks of ``graph``.

    ``variant_of_rank`` numbers what differs between GPUs besides their ports (default: nothing).  Without
    ``fold`` every rank is a class of its own.
    """
    relations = relations_of(graph, topology, planner)
    world = graph.world_size
    num_links = len(topology.links)
    if fold:
        fabric = Fabric(topology, world)
        variant = np.zeros(world, dtype=np.int64) if variant_of_rank is None else variant_of_rank
        ranks = unique_rows(np.stack([graph.program_of_rank.astype(np.int64), variant], axis=1))
        links = _link_colours(topology, relations)
        instances = [relation.colour for relation in relations]
        may_fill = ~topology.is_never_full
        ranks, instances, links = _refine(
            [relation.loading(may_fill) for relation in relations],
            fabric.own[fabric.gpu],
            ranks,
            instances,
            links,
        )
        links = _by_load([relation.loading(~may_fill) for relation in relations], instances, links)
    else:
        ranks = np.arange(world, dtype=np.int64)
        links = np.arange(num_links, dtype=np.int64)
        instances = [np.arange(len(relation.members), dtype=np.int64) for relation in relations]
    classes, representatives, sizes = np.unique(ranks, return_index=True, return_counts=True)
    assert (classes == np.arange(len(classes))).all()
    return Partition(ranks, representatives, sizes, tuple(relations), tuple(instances), links)


def _link_colours(topology: Topology, relations: list[Relation]) -> IntArray:
    """Links by capacity and latency; those that nobody uses are all alike."""
    used = np.zeros(len(topology.links), dtype=np.bool_)
    for relation in relations:
        used[relation.own_links] = True
        used[relation.shared.link] = True
    figures = np.stack([topology.links.bytes_per_s, topology.links.latency_s], axis=1)
    return unique_rows(np.where(used[:, None], figures, 0.0))


def _by_load(relations: list[Relation], instances: list[IntArray], links: IntArray) -> IntArray:
    """Links split by who loads them, once: who does is not told apart by links that hold nobody up."""
    link_sum = np.zeros((len(links), 2), dtype=np.uint64)
    for number, (relation, weight) in enumerate(zip(relations, _weights(relations), strict=True)):
        shared = relation.shared
        of = np.full(len(shared.link), number, dtype=np.int64)
        add_at(link_sum, shared.link, mix(of, instances[number][shared.instance], weight))
    return refined(links, link_sum)


def _weights(relations: list[Relation]) -> list[IntArray]:
    """What each shared load of a relation is, numbered."""
    return [
        unique_rows(np.stack([r.shared.weight, r.shared.call.astype(np.float64), r.shared.inputs], axis=1))
        for r in relations
    ]


def _refine(
    relations: list[Relation], ports: IntArray, ranks: IntArray, instances: list[IntArray], links: IntArray
) -> tuple[IntArray, list[IntArray], IntArray]:
    """Split colours until nothing splits.  ``ports[r]`` are the links that rank ``r`` owns: it takes in their
    colours and they take in its own.
    """
    weights = _weights(relations)
    which_port = np.broadcast_to(np.arange(ports.shape[1]), ports.shape)
    count = -1
    while True:
        total = int(ranks.max()) + sum(int(i.max()) for i in instances if len(i)) + int(links.max())
        if total == count:
            return ranks, instances, links
        count = total
        link_sum = np.zeros((len(links), 2), dtype=np.uint64)
        add_at(link_sum, ports, mix(np.broadcast_to(ranks[:, None], ports.shape), which_port))
        rank_sum = mix(links[ports], which_port).sum(axis=1, dtype=np.uint64)
        for number, (relation, weight) in enumerate(zip(relations, weights, strict=True)):
            members, shared = relation.members, relation.shared
            end = np.arange(members.shape[1]) if relation.delta else np.zeros(1, dtype=np.int64)
            end = np.broadcast_to(end, members.shape)
            signature = mix(ranks[members], relation.role, end).sum(axis=1, dtype=np.uint64)
            add_at(signature, shared.instance, mix(links[shared.link], weight))
            mine = instances[number] = refined(instances[number], signature)
            tag = np.full(members.shape, number, dtype=np.int64)
            colour = np.broadcast_to(mine[:, None], members.shape)
            add_at(rank_sum, members, mix(tag, colour, relation.role, end))
            load = mix(np.full(len(shared.link), number, dtype=np.int64), mine[shared.instance], weight)
            add_at(link_sum, shared.link, load)
        ranks, links = refined(ranks, rank_sum), refined(links, link_sum)
