"""NCCL_ALGO and NCCL_PROTO as users write them."""

import pytest

from simcore.collectives import NcclPlanner
from simcore.collectives.forced import forced_algorithms, forced_protocols
from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster
from simcore.units import MIB

H100 = Topology(load_cluster("h100", {}))
NODE = tuple(range(8))
KNOWN = ("ring", "tree", "nvls")


@pytest.mark.parametrize(
    ("text", "all_reduce", "all_gather"),
    [
        ("Tree", ("tree",), ("tree",)),
        ("RING,nvls", ("ring", "nvls"), ("ring", "nvls")),
        ("^Ring", ("tree", "nvls"), ("tree", "nvls")),
        ("ring;allreduce:^nvls", ("ring", "tree"), ("ring",)),
        ("AllReduce:NVLS", ("nvls",), KNOWN),
        # Nothing that is allowed exists here: NCCL_ALGO is ignored.
        ("CollnetDirect,NVLSTree", KNOWN, KNOWN),
    ],
)
def test_lists_of_algorithms(text: str, all_reduce: tuple[str, ...], all_gather: tuple[str, ...]) -> None:
    forced = forced_algorithms(text)
    assert forced.among("all_reduce", KNOWN) == all_reduce
    assert forced.among("all_gather", KNOWN) == all_gather


def test_what_is_forced_is_planned() -> None:
    def chosen(
        algorithm: str | None, protocol: str | None, collective: str = "all_reduce"
    ) -> tuple[str, str]:
        plan = NcclPlanner(H100, algorithm=algorithm, protocol=protocol).plan(collective, 64 * MIB, NODE)
        return plan.algorithm, plan.protocol

    assert chosen(None, None) == ("nvls", "Simple")
    assert chosen("^NVLS", None) == ("ring", "Simple")
    assert chosen("^NVLS", "^Simple")[1] in ("LL", "LL128")
    assert chosen("allreduce:tree", "LL128,LL") == ("tree", "LL128")
    assert chosen("allreduce:tree", None, "all_gather")[0] == "ring"
    assert chosen("allgather:nvls", None, "all_gather") == ("nvls", "Simple")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tre", "unknown NCCL algorithm 'tre'; did you mean 'tree'"),
        ("ring,", "unknown NCCL algorithm ''"),
        ("allreduse:ring", "unknown collective 'allreduse'; did you mean 'all_reduce'"),
        ("ring;tree", "speaks twice of all collectives"),
        ("allreduce:ring;AllReduce:tree", "speaks twice of AllReduce"),
    ],
)
def test_what_does_not_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        forced_algorithms(text)


def test_protocols_are_lists_too() -> None:
    assert forced_protocols("^ll128").among("broadcast", ("LL", "LL128", "Simple")) == ("LL", "Simple")
    with pytest.raises(InputError, match="unknown NCCL protocol 'LL129'; did you mean 'LL128'"):
        forced_protocols("LL129")
