"""The folded job: one rank per class, one communicator per class of groups, loads counted for all members."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simcore.collectives.kinds import SEND_RECV
from simcore.collectives.plan import LinkUse
from simcore.errors import GraphError
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from simcore.symmetry.fabric import Fabric
from simcore.symmetry.partition import Partition
from simcore.symmetry.relations import Relation

if TYPE_CHECKING:
    from simcore.collectives.plan import CollectivePlan, Planner
    from simcore.hardware import Topology


@dataclass(frozen=True)
class Membership:
    """A representative's place in a group, or at one end of a pair that sends and receives.

    ``ranks`` is its own ``instance`` in group order.  ``group_class`` identifies the class of instances that
    behave alike; ``num_arrivals`` is how many representatives meet in it: one per class of members, each
    standing for all of them (in a pair, one per end).
    """

    relation: int
    group_class: int
    instance: int
    ranks: tuple[int, ...]
    num_arrivals: int


class Quotient:
    """Memberships and plans of the representatives of a partition."""

    def __init__(self, parts: Partition, topology: Topology, planner: Planner) -> None:
        self.partition = parts
        self._planner = planner
        fabric = Fabric(topology, len(parts.class_of))
        self._own_ports = fabric.own[fabric.gpu]
        self._number = {(r.group, r.delta): number for number, r in enumerate(parts.relations)}
        self._ends = [_ends(relation, len(parts.class_of)) for relation in parts.relations]
        self._loads = _shared_loads(parts)
        self._arrivals = [self._meeting(number) for number in range(len(parts.relations))]
        self._plans: dict[tuple[int, int, str, int], CollectivePlan] = {}

    def membership(
        self, rank: int, group: str, delta: int = 0, *, receives: bool = False
    ) -> Membership | None:
        """Place of a representative in a group, or in the pair in which it sends (receives) by ``delta``.

        None when it is in none.
        """
        number = self._number.get((group, delta))
        if number is None:
            return None
        instance = int(self._ends[number][int(receives)][rank])
        if instance < 0:
            return None
        group_class = int(self.partition.instance_class[number][instance])
        ranks = tuple(self.partition.relations[number].members[instance].tolist())
        return Membership(number, group_class, instance, ranks, len(self._arrivals[number][group_class]))

    def company(self, rank: int, group: str, delta: int = 0, *, receives: bool = False) -> tuple[int, ...]:
        """The representatives that meet in a representative's group, or at the ends of its pair, itself among
        them, each as often as it arrives there.  Nobody where it is in none.
        """
        number = self._number.get((group, delta))
        instance = -1 if number is None else int(self._ends[number][int(receives)][rank])
        if number is None or instance < 0:
            return ()
        group_class = int(self.partition.instance_class[number][instance])
        return tuple([other for other, *_ in self._arrivals[number][group_class]])

    def ports(self, rank: int) -> dict[int, int]:
        """Links that belong to a rank's GPU alone, numbered."""
        return {link: number for number, link in enumerate(self._own_ports[rank].tolist())}

    def plan(self, place: Membership, collective: str, num_bytes: int) -> CollectivePlan:
        """Plan of a call in a class of groups (the same object for the same request).

        Its links are the representatives' own ports, as each carries them in its own instance, and one link
        per class of shared links, with the weight of all instances of the class that cross it.
        """
        key = (place.relation, place.group_class, collective, num_bytes)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._folded(place, collective, num_bytes)
        return found

    def _meeting(self, number: int) -> dict[int, list[tuple[int, int, int]]]:
        """Per class of instances the (representative, its instance, its place there) that meet there."""
        classes, members = self.partition.instance_class[number], self.partition.relations[number].members
        place_of = np.zeros(len(self.partition.class_of), dtype=np.int64)
        meeting: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for end, instance_of in enumerate(self._ends[number]):
            place_of[members] = np.arange(members.shape[1]) if len(self._ends[number]) == 1 else end
            for rank in self.partition.representatives.tolist():
                instance = int(instance_of[rank])
                if instance >= 0:
                    meeting[int(classes[instance])].append((rank, instance, int(place_of[rank])))
        return dict(meeting)

    def _folded(self, place: Membership, collective: str, num_bytes: int) -> CollectivePlan:
        relation = self.partition.relations[place.relation]
        if (collective, num_bytes) not in relation.calls:
            raise GraphError(f"group {relation.group!r}: nobody sends {num_bytes} bytes that a rank receives")
        call = relation.calls.index((collective, num_bytes))
        example = relation.members[relation.example[place.instance]].tolist()
        plan = (
            self._planner.plan_p2p(num_bytes, *example)
            if relation.delta and collective == SEND_RECV.name
            else self._planner.plan(collective, num_bytes, tuple(example))
        )
        uses: dict[int, list[float]] = defaultdict(list)
        for rank, *at in self._arrivals[place.relation][place.group_class]:
            for port, weight in relation.own_loads[relation.role[*at]][call]:
                uses[int(self._own_ports[rank, port])].append(weight)
        shared = self._loads.get((place.relation, place.group_class, call), ())
        own = [LinkUse(link, math.fsum(weights)) for link, weights in uses.items()]
        folded = tuple(sorted((*own, *shared), key=lambda use: use.link))
        return replace(plan, ranks=place.ranks, links=folded)


def _ends(relation: Relation, world: int) -> tuple[IntArray, ...]:
    """Instance of each rank (-1: none); for pairs as the source and as the destination."""
    instances = np.arange(len(relation.members), dtype=np.int64)
    ends = []
    for members in relation.members.T if relation.delta else [relation.members]:
        instance_of = np.full(world, -1, dtype=np.int64)
        instance_of[members] = instances if relation.delta else instances[:, None]
        ends.append(instance_of)
    return tuple(ends)


def _shared_loads(parts: Partition) -> dict[tuple[int, int, int], list[LinkUse]]:
    """(relation, class of instances, call) -> use by all its instances of one link per class of links."""
    is_first = np.zeros(len(parts.link_class), dtype=np.bool_)
    is_first[np.unique(parts.link_class, return_index=True)[1]] = True
    found: dict[tuple[int, int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for number, (relation, classes) in enumerate(zip(parts.relations, parts.instance_class, strict=True)):
        shared = relation.shared
        mine = np.flatnonzero(is_first[shared.link])
        columns = (
            classes[shared.instance[mine]], shared.call[mine], shared.link[mine], shared.weight[mine],
            shared.inputs[mine],
        )  # fmt: skip
        for group_class, call, link, *load in zip(*(column.tolist() for column in columns), strict=True):
            found[number, group_class, call, link].append((load[0], load[1]))
    loads: dict[tuple[int, int, int], list[LinkUse]] = defaultdict(list)
    for (number, group_class, call, link), of_instances in found.items():
        weights, inputs = zip(*of_instances, strict=True)
        loads[number, group_class, call].append(LinkUse(link, math.fsum(weights), math.fsum(inputs)))
    return dict(loads)
