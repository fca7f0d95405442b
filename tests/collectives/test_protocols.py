"""Protocols and chunks as NCCL computes them."""

import pytest

from simcore.collectives.channels import channels_for, search_channels
from simcore.collectives.kinds.all_reduce import ALL_REDUCE
from simcore.collectives.layout import layout_of
from simcore.collectives.loads import tree_levels
from simcore.collectives.protocols import (
    LL,
    LL128,
    SIMPLE,
    nvls_chunking,
    p2p_chunking,
    protocol_named,
    ring_chunking,
    tree_chunking,
)
from simcore.collectives.tuning_constants import tuning_of
from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster
from simcore.units import KIB, MIB


def test_wire_overhead() -> None:
    assert LL.wire_overhead == 2  # 4 B of data beside a 4 B flag
    assert LL128.wire_overhead == 128 / 120
    assert SIMPLE.wire_overhead == 1


def test_buffers_and_their_slots() -> None:
    assert LL.buffer_bytes == 512 * KIB  # 8 lines x 512 threads x 8 steps x 16 B
    assert LL128.buffer_bytes == 4_915_200  # 120 words x 640 threads x 8 steps x 8 B
    assert SIMPLE.buffer_bytes == 4 * MIB
    # One of 8 slots, flags taken off: 64 KiB / 2, 614,400 x 120 / 128, 512 KiB.
    assert LL.step_bytes() == 32 * KIB
    assert LL128.step_bytes() == 576_000
    assert SIMPLE.step_bytes() == 512 * KIB
    assert SIMPLE.step_bytes(8 * MIB) == MIB


# Echo (arXiv 2412.12487), Table 6: chunk sizes of NCCL 2.22.3 on 32 H800, in 10^3 bytes.
@pytest.mark.parametrize(
    ("megabytes", "chunk"),
    [(4, 18), (8, 36), (16, 72), (32, 72), (64, 72), (128, 144), (256, 288)],
)
def test_tree_chunks_are_those_that_echo_read_from_nccl_on_32_h800(megabytes: int, chunk: int) -> None:
    layout = layout_of(Topology(load_cluster("h800-96", {})), range(32))
    depth = sum(tree_levels(layout))
    found = tree_chunking(LL128, megabytes * MIB, 32, 4, channels=16, depth=depth)
    assert found.chunk_bytes == chunk * 1000


def test_ring_chunks_hold_a_rank_share_up_to_four_slots() -> None:
    # 8 MiB over 8 ranks and 16 channels: 64 KiB each, one loop, two slices.
    small = ring_chunking(ALL_REDUCE, SIMPLE, 8 * MIB, 8, 16)
    assert (small.chunk_bytes, small.num_loops, small.num_chunks, small.slices) == (64 * KIB, 1, 8, 2)
    # 1 GiB: 64 MiB a channel; a loop holds 8 x 4 x 512 KiB = 16 MiB: 4 loops of full chunks.
    large = ring_chunking(ALL_REDUCE, SIMPLE, 1024 * MIB, 8, 16)
    assert (large.chunk_bytes, large.num_loops, large.num_chunks) == (2 * MIB, 4, 32)
    # A double buffer halves the loops.
    assert ring_chunking(ALL_REDUCE, SIMPLE, 1024 * MIB, 8, 16, 8 * MIB).num_loops == 2


def test_chunks_cover_the_message() -> None:
    for num_bytes in (1, 4095, 10**6, 10**9 + 7):
        for protocol in (LL, LL128, SIMPLE):
            ring = ring_chunking(ALL_REDUCE, protocol, num_bytes, 6, 5)
            assert ring.chunk_bytes * ring.num_chunks * 5 >= num_bytes
            tree = tree_chunking(protocol, num_bytes, 32, 4, 5, 9)
            assert tree.chunk_bytes * tree.num_chunks * 5 >= num_bytes
            messages = p2p_chunking(protocol, num_bytes, 5, crosses_nodes=True)
            assert messages.chunk_bytes * messages.num_chunks * 5 >= num_bytes
        switch = nvls_chunking(num_bytes, 8, 16, 1)
        assert switch.chunk_bytes * switch.num_chunks * 16 >= num_bytes


def test_send_recv_chunks_are_smaller_over_the_network() -> None:
    assert p2p_chunking(SIMPLE, 64 * MIB, 2, crosses_nodes=True).chunk_bytes == 128 * KIB
    assert p2p_chunking(SIMPLE, 64 * MIB, 2, crosses_nodes=False).chunk_bytes == 512 * KIB
    assert p2p_chunking(SIMPLE, 64 * MIB, 2, crosses_nodes=False, buffer_bytes=MIB).chunk_bytes == 128 * KIB


def test_protocol_names() -> None:
    assert protocol_named("ll128") is LL128
    with pytest.raises(InputError, match="did you mean 'LL128'"):
        protocol_named("LL182")


# What NCCL prints as "coll channels": 24 on 8 x H100 and 8 x A100, 16 on 8 x H800; 16 with 8 NICs over nodes.
@pytest.mark.parametrize(
    ("generation", "nodes", "nvlink", "nic", "nics", "channels"),
    [
        ("hopper", 1, 370.8e9, 50e9, 8, 24),
        ("hopper", 1, 164.8e9, 50e9, 8, 16),
        ("ampere", 1, 240e9, 25e9, 8, 24),
        ("volta", 1, 120e9, 12.5e9, 4, 12),
        ("hopper", 4, 370.8e9, 50e9, 8, 16),
        ("ampere", 4, 240e9, 25e9, 8, 16),
        # One GPU per node: one ring of 48 GB/s, duplicated (fewer than 5 rings), doubled.
        ("hopper", 4, 370.8e9, 50e9, 1, 4),
        ("ampere", 4, 240e9, 25e9, 1, 2),
    ],
)
def test_channels_that_nccl_opens(
    generation: str, nodes: int, nvlink: float, nic: float, nics: int, channels: int
) -> None:
    graph = search_channels(tuning_of(generation, (2, 27)), nodes, nvlink, nic, nics)
    assert graph.channels == channels
    wires = nvlink if nodes == 1 else nics * nic
    assert graph.channels * graph.bytes_per_s <= wires


def test_small_messages_get_few_channels() -> None:
    # LL in a ring of 8: 8 B x 512 threads x 8 ranks = 32 KiB a channel.
    assert channels_for(LL, "ring", ALL_REDUCE, 32 * KIB, 8, 24) == 1
    assert channels_for(LL, "ring", ALL_REDUCE, 256 * KIB, 8, 24) == 8
    # Simple: 64 B x 512 threads = 32 KiB a channel.
    assert channels_for(SIMPLE, "ring", ALL_REDUCE, 320 * KIB, 8, 24) == 10
    assert channels_for(SIMPLE, "ring", ALL_REDUCE, 4, 8, 24, min_channels=4) == 4
    assert channels_for(SIMPLE, "ring", ALL_REDUCE, 1 << 30, 8, 24) == 24
