"""Exchanges of tokens by kernels of their own: bytes on NICs and NVLink, SMs held, time."""

from __future__ import annotations

import pytest

from simcore.collectives import NcclPlanner
from simcore.collectives.kinds.all_to_all import (
    CHANNELS,
    NETWORK_SHARE,
    NVLINK_SHARE,
    SM_BYTES_PER_S,
    TokenExchange,
)
from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster

#: 4,096 tokens for 4 of 8 nodes in bf16, 7,168 wide.
SIZE = 4096 * 4 * 7168 * 2


def planned(gpus: int, exchange: TokenExchange, size: int = SIZE):
    topology = Topology(load_cluster(f"h800-{gpus}"))
    return topology, NcclPlanner(topology).plan(str(exchange), size, range(gpus))


def test_a_name_says_how_it_runs():
    exchange = TokenExchange(20, 1.875)
    assert str(exchange) == "all_to_all:sms=20,gpus=1.875"
    assert TokenExchange.parse(str(exchange)) == exchange
    assert TokenExchange.parse("all_to_all") is None
    with pytest.raises(InputError, match="sms=COUNT,gpus=NUMBER"):
        TokenExchange.parse("all_to_all:sms=0,gpus=1")


def test_between_nodes_nics_carry_what_leaves_the_node():
    topology, plan = planned(64, TokenExchange(20, 1.875))
    assert (plan.channels, plan.algorithm) == (20, "routed")
    # 7/8 of 235 MB over a NIC of 50 GB/s x 0.94 x 0.85: 5.14 ms.
    seconds = SIZE * 7 / 8 / (50e9 * 0.94 * NETWORK_SHARE)
    assert plan.alone_ps / 1e12 == pytest.approx(seconds, rel=0.01)
    carried = {use.link: use.weight * plan.volume_bytes for use in plan.links}
    assert carried[topology.nic_out(0)] == pytest.approx(SIZE * 7 / 8)
    assert carried[topology.nic_in(0)] == pytest.approx(SIZE * 7 / 8)
    # A token goes to 1.875 of the node's 8 GPUs, one in eight times to the one where it arrived.
    assert carried[topology.nvlink_out(0)] == pytest.approx(SIZE * 1.875 * 7 / 8)


def test_on_one_node_nvlink_or_the_sms_set_the_pace():
    wire = 8 * 25e9 * 0.824 * NVLINK_SHARE
    for sms, rate in ((20, wire), (4, 4 * SM_BYTES_PER_S * NVLINK_SHARE)):
        _, plan = planned(8, TokenExchange(sms, 5.25))
        seconds = SIZE * 5.25 * 7 / 8 / min(wire, rate)
        assert plan.alone_ps / 1e12 == pytest.approx(seconds, rel=0.01)


def test_channels_look_at_every_token_on_one_node():
    """32,768 tokens of 5,120 x 2 bytes for one expert each on 4 SMs: 2 channels look at 16,384 each."""
    size = 32768 * 10240
    name = str(one := TokenExchange(4, 1.0, token_bytes=10240, sums=True))
    assert name == "all_to_all:sms=4,gpus=1,sums=10240" and TokenExchange.parse(name) == one
    channel = CHANNELS["sums"]
    seconds = 16384 * (channel.look_s + 10240 / channel.bytes_per_s) / NVLINK_SHARE
    assert planned(8, one, size)[1].alone_ps / 1e12 == pytest.approx(seconds, rel=0.01)
    # Five ranks a token are five copies, and one look.
    five = planned(8, TokenExchange(4, 5.0, token_bytes=10240, sums=True), size)[1]
    more = 16384 * 4 * 10240 / channel.bytes_per_s / NVLINK_SHARE
    assert five.alone_ps / 1e12 == pytest.approx(seconds + more, rel=0.01)


def test_a_group_of_one_and_no_bytes_launch_nothing():
    assert planned(8, TokenExchange(20, 1.0), 0)[1].channels == 0
