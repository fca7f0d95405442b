"""Communicators of a program's ranks, from the ops that meet other ranks."""

from __future__ import annotations

import numpy as np

from simcore.collectives.communicator import CommunicatorUse
from simcore.distinct import distinct
from simcore.graph.graph import Graph, Program
from simcore.graph.kinds import is_p2p
from simcore.graph.ops import OpKind


def communicators_of(graph: Graph, program: Program) -> list[CommunicatorUse]:
    """Of the program's first rank, in the order of the graph's groups."""
    rank = program.rank_list()[0]
    ops = graph.ops
    here = np.zeros(len(ops), dtype=np.bool_)
    for template in distinct(program.template):
        rows = graph.template_rows(int(template))
        here[rows.start : rows.stop] = True
    found = []
    for name, group in graph.groups.items():
        if not group.contains(rank):
            continue
        own = here & ops.group.equals(name)
        members = group.ranks_of(rank)
        place = members.index(rank)
        collectives = np.flatnonzero(own & (ops.kind == OpKind.COLLECTIVE))
        calls = {(ops.collective[int(row)], int(ops.num_bytes[row])) for row in collectives}
        deltas = distinct(ops.peer_delta[own & is_p2p(ops.kind)])
        peers = {members[(place + int(delta)) % len(members)] for delta in deltas}
        if any(kind.startswith("all_to_all") for kind, _ in calls):
            peers |= set(members) - {rank}
        if calls or peers:
            found.append(CommunicatorUse(name, tuple(sorted(members)), frozenset(calls), frozenset(peers)))
    return found
