"""What a plan's ranks send to whom and after what: the collective as dependent messages.

A program is a list of lanes.  A lane is one connection: its sends leave in order, each as soon as its sender
has received what it passes on.  NCCL's channels that take the same ring are one lane with their chunks put
together, since they run in step; rotations over the GPUs of a node (:mod:`simcore.collectives.loads`,
Note [Rotation]) stay apart.  Chunks travel as slices, as NCCL's copy loops pass them on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Final

from simcore.collectives.kinds import Collective, Transfer, split
from simcore.collectives.kinds.all_to_all import hierarchical_all_to_all
from simcore.collectives.layout import PlacedGroup, layout_of
from simcore.collectives.loads import ring_order, tree_edges, tree_rotations
from simcore.collectives.plan import CollectivePlan
from simcore.collectives.protocols import NCCL_STEPS
from simcore.collectives.tree import Tree
from simcore.errors import InputError
from simcore.hardware.topology import Topology
from simcore.network.packet.lanes import Builder, MessageProgram
from simcore.network.packet.nvls import nvls_program

#: Messages of one program; beyond, chunks are put together, as it then has far more of them than steps.
_MAX_MESSAGES: Final = 600_000
#: Slices that a ring chunk of four buffer slots travels as under Simple (NCCL src/include/collectives.h).
RING_SLICES: Final = 2
_RING_SLOTS_PER_SLICE: Final = 2


def program_of(topology: Topology, plan: CollectivePlan, slices: int | None = None) -> MessageProgram:
    """The messages of ``plan``, chunked as the plan says; ``slices`` per chunk, None for NCCL's number.

    InputError for an algorithm that is not known here.
    """
    match plan.algorithm:
        case "none":
            return MessageProgram(())
        case "p2p":
            return _p2p(topology, plan, slices or 1)
        case "ring":
            return _ring(topology, plan, layout_of(topology, plan.ranks), slices)
        case "tree":
            return _tree(topology, plan, layout_of(topology, plan.ranks), slices or 1)
        case "pairwise":
            return _pairwise(topology, plan, layout_of(topology, plan.ranks), slices or 1)
        case "hierarchical":
            return _two_levels(topology, plan, layout_of(topology, plan.ranks), slices or 1)
        case "pat":
            return _pat(topology, plan, slices or 1)
        case "nvls" | "nvls_tree":
            return nvls_program(topology, plan, layout_of(topology, plan.ranks))
    raise InputError(f"the packet network has no messages of {plan.algorithm!r}; force another algorithm")


def _ring(
    topology: Topology, plan: CollectivePlan, layout: PlacedGroup, slices: int | None
) -> MessageProgram:
    rotations = layout.num_rings
    orders = [ring_order(layout, rotation) for rotation in range(rotations)]
    ranks = layout.num_ranks
    kind, in_steps = plan.kind, not plan.kind.root_chain
    if slices is None:
        slices = RING_SLICES if plan.protocol == "Simple" and in_steps else 1
    window = NCCL_STEPS // _RING_SLOTS_PER_SLICE if in_steps else NCCL_STEPS
    builder = Builder(topology, plan, slices, window, stores=not in_steps)
    num_bytes = max(plan.num_bytes, 4)
    if in_steps:
        loops = plan.num_chunks // ranks
        for number, (_, size) in enumerate(split(num_bytes, loops)):
            if number:
                builder.next_loop()
            builder.add(kind.steps("ring", ranks, size, rotations), orders, via_rail=False)
    else:
        chunks = _affordable(plan.num_chunks, rotations * ranks * slices)
        transfers = kind.steps("ring", ranks, num_bytes, rotations, chunks)
        builder.add(transfers, orders, via_rail=False)
    return builder.program(plan.channels // rotations)


def _tree(topology: Topology, plan: CollectivePlan, layout: PlacedGroup, slices: int) -> MessageProgram:
    """One channel per rotation and tree: a chain in each node, its head in one of two trees of nodes."""
    rotations = tree_rotations(layout)
    channels = 2 * rotations
    chunks = _affordable(plan.num_chunks, 2 * channels * layout.num_ranks * slices)
    gpus = tuple(gpu for members in layout.nodes for gpu in members)
    builder = Builder(topology, plan, slices, NCCL_STEPS, stores=True)
    for channel, (_, share) in enumerate(split(max(plan.num_bytes, 4), channels)):
        tree = _rank_tree(layout, channel // 2, channel % 2)
        builder.add(_tree_transfers(tree, channel, share, chunks), [gpus] * channels, via_rail=False)
    return builder.program(plan.channels // rotations)


def _rank_tree(layout: PlacedGroup, rotation: int, which: int) -> Tree:
    """Parents by position in the group, in the order of ``layout.nodes``."""
    position = {gpu: n for n, gpu in enumerate(gpu for gpus in layout.nodes for gpu in gpus)}
    parent = [-1] * layout.num_ranks
    for child, above in tree_edges(layout, rotation, which).tolist():
        parent[position[child]] = position[above]
    return Tree(tuple(parent))


def _tree_transfers(tree: Tree, channel: int, num_bytes: int, chunks: int) -> Iterator[Transfer]:
    """Each chunk up from the leaves, then down; a lane's order is the order of chunks."""
    level = tree.level
    by_level = sorted(range(len(level)), key=lambda member: level[member])
    for chunk, (offset, size) in enumerate(split(num_bytes, chunks)):
        for member in reversed(by_level):
            if tree.parent[member] >= 0:
                yield Transfer(
                    -level[member], channel, member, tree.parent[member], chunk, offset, size, True
                )
        for member in by_level:
            if tree.parent[member] >= 0:
                yield Transfer(
                    level[member], channel, tree.parent[member], member, chunk, offset, size, False
                )


def _pairwise(topology: Topology, plan: CollectivePlan, layout: PlacedGroup, slices: int) -> MessageProgram:
    """Every rank's messages to all others, each cut into chunks that follow one another."""
    gpus = tuple(topology.gpu_of_rank(rank) for rank in plan.ranks)
    ranks = layout.num_ranks
    message = plan.num_bytes // ranks
    chunks = -(-message // max(1, plan.chunk_bytes * plan.channels))
    pieces = max(1, _affordable(chunks, ranks * ranks * slices) * slices)
    builder = Builder(topology, plan, pieces, NCCL_STEPS, stores=False)
    transfers = _exchanged(plan.kind, ranks, max(plan.num_bytes, ranks))
    builder.add(transfers, [gpus], via_rail=True)
    return builder.program()


def _exchanged(kind: Collective, num_ranks: int, num_bytes: int) -> list[Transfer]:
    """What ``kind``'s schedule "pairwise" sends.

    Errors: InputError unless it is what ``pieces`` has for each pair, a byte more or less for each transfer.
    """
    transfers = list(kind.steps("pairwise", num_ranks, num_bytes))
    sent: dict[tuple[int, int], tuple[int, int]] = {}  # bytes and transfers
    members = range(num_ranks)
    for one in transfers:
        if one.src == one.dst or one.src not in members or one.dst not in members or one.channel:
            raise InputError(
                f"collective {kind.name!r}: the schedule 'pairwise' has {one}; it goes from one of"
                f" {num_ranks} ranks to another, on channel 0 where channels=1"
            )
        size, count = sent.get((one.src, one.dst), (0, 0))
        sent[one.src, one.dst] = size + one.num_bytes, count + 1
    for src, dst in permutations(members, 2):
        share = 1.0 if kind.pieces is None else kind.pieces(src, dst, num_ranks)
        size, count = sent.get((src, dst), (0, 0))
        wanted = share * num_bytes / num_ranks
        if abs(size - wanted) > max(1, count):
            raise InputError(
                f"collective {kind.name!r}: the schedule 'pairwise' sends {size:,} of {num_bytes:,} bytes"
                f" from rank {src} to {dst}; pieces({src}, {dst}, {num_ranks}) is {share:g} times"
                f" num_bytes/num_ranks, {wanted:,.0f}"
            )
    return transfers


def _two_levels(topology: Topology, plan: CollectivePlan, layout: PlacedGroup, slices: int) -> MessageProgram:
    """Exchanges in each node, then along rails once a rank has the last message of its node."""
    gpus = tuple(gpu for members in layout.nodes for gpu in members)
    local = layout.max_per_node
    builder = Builder(topology, plan, slices, NCCL_STEPS, stores=False)
    transfers = list(hierarchical_all_to_all(len(gpus), max(plan.num_bytes, len(gpus)), ranks_per_node=local))
    builder.add((t for t in transfers if t.step < local - 1), [gpus], via_rail=False)
    builder.next_loop()
    builder.add((t for t in transfers if t.step >= local - 1), [gpus], via_rail=False)
    return builder.program(plan.channels)


def _p2p(topology: Topology, plan: CollectivePlan, slices: int) -> MessageProgram:
    gpus = tuple(topology.gpu_of_rank(rank) for rank in plan.ranks)
    chunks = -(-plan.num_bytes // max(1, plan.chunk_bytes * plan.channels))
    pieces = max(1, _affordable(chunks, slices) * slices)
    builder = Builder(topology, plan, pieces, NCCL_STEPS, stores=False)
    builder.add([Transfer(0, 0, 0, 1, 0, 0, max(1, plan.num_bytes), False)], [gpus], via_rail=True)
    return builder.program(plan.channels)


def _pat(topology: Topology, plan: CollectivePlan, slices: int) -> MessageProgram:
    """Binomial trees of all ranks at once; chunks that go the same way follow each other on one lane."""
    gpus = tuple(topology.gpu_of_rank(rank) for rank in plan.ranks)
    builder = Builder(topology, plan, slices, NCCL_STEPS, stores=False)
    transfers = plan.kind.steps("pat", len(gpus), max(plan.num_bytes, len(gpus)))
    builder.add(transfers, [gpus], via_rail=False)
    return builder.program(plan.channels)


def _affordable(chunks: int, messages_per_chunk: int) -> int:
    return max(1, min(chunks, _MAX_MESSAGES // messages_per_chunk))
