"""Constants and spreads come from profiles that are checked key by key."""

from __future__ import annotations

from importlib import resources

import pytest

from simcore.collectives import NcclPlanner
from simcore.collectives.spread import BAND_KEYS, SCHEMA, relative_error
from simcore.collectives.timing import parse_timing, timing_of
from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster
from simcore.tables import names, read
from simcore.units import GIB, KIB, MIB

HOPPER = (resources.files("hardware_profiles") / "nccl" / "hopper.toml").read_text(encoding="utf-8")
SPREAD = (resources.files("hardware_profiles") / "measured" / "nccl_spread.toml").read_text(encoding="utf-8")


def test_every_generation_has_constants() -> None:
    assert names("hardware_profiles", "nccl") == ("ampere", "blackwell", "hopper", "volta")
    assert parse_timing(HOPPER, "hopper") == timing_of("hopper")
    with pytest.raises(InputError, match="no NCCL timing for GPU generation 'hoper'; did you mean 'hopper'"):
        timing_of("hoper")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tree_efficiency", "tree_eficiency", "unknown key 'tree_eficiency'; did you mean 'tree_efficiency'"),
        ("[protocol.LL128]", "[protocol.LL129]", "unknown key 'LL129'; did you mean 'LL128'"),
        ("[collectives]", "[collective]", "unknown key 'collective'"),
        ("base_s = ", "base_s = -", "must be a number >= 0"),
        ("base_s = ", "base_s = nan #", "base_s: must be a finite number"),
        ("channel_bytes_per_s = ", "channel_bytes_per_s = 0 #", "channel_bytes_per_s must be above 0"),
        ("tree_efficiency = ", "tree_efficiency = 2 #", "is a share and must be at most 1"),
        ("source = ", "source = '' #", "source must say where"),
        ("peer_s", "# peer_s", "key 'peer_s' is missing"),
        ("base_s = ", "base_s ", "not valid TOML"),
    ],
)
def test_a_wrong_profile_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_timing(HOPPER.replace(old, new, 1), "hopper")


def test_plans_carry_the_error_of_their_kind() -> None:
    planner = NcclPlanner(Topology(load_cluster("h100-64")))
    node, all_ranks = tuple(range(8)), tuple(range(64))
    for collective, size, ranks, nodes in (
        ("all_reduce", 32 * KIB, node, 1),
        ("all_gather", GIB, node, 1),
        ("all_reduce", 8 * MIB, all_ranks, 8),
    ):
        plan = planner.plan(collective, size, ranks)
        assert plan.relative_error == relative_error(collective, size, nodes)
        assert 0 < plan.relative_error < 0.5
    assert planner.plan("all_reduce", 8, (0,)).relative_error == 0.0


def test_collectives_that_nobody_measured_have_the_error_of_all() -> None:
    bands = "\n".join(f"{band} = {0.1 * k:.1f}" for k, band in enumerate(BAND_KEYS, start=1))
    text = (
        f"[one_node.any]\n{bands}\n[several_nodes.any]\n{bands}\n[one_node.all_reduce]\nbelow_1_mib = 0.7\n"
        "[tuner]\nall_sizes = 0.2\n"
    )
    spread = read(SCHEMA, text, "test")
    assert spread["one_node"]["all_reduce"] == {"below_1_mib": 0.7}
    assert spread["several_nodes"]["any"]["from_64_mib"] == 0.4
    assert relative_error("broadcast", GIB, 4) == relative_error("all_to_all", GIB, 4)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[one_node.any]", "[one_node.some]", r"\[one_node\]: key 'any' is missing"),
        ("below_64_kib = ", "below_64_kib = -", "must be a number >= 0"),
        (
            "[one_node.all_reduce]",
            "[one_node.all_reduce]\nbelow_2_mib = 0.1",
            "unknown key 'below_2_mib'; did you mean 'below_1_mib'",
        ),
        ("all_sizes", "al_sizes", r"\[tuner\]: unknown key 'al_sizes'"),
        ("=", "", "not valid TOML"),
    ],
)
def test_a_wrong_spread_is_refused(old: str, new: str, message: str) -> None:
    assert old in SPREAD
    with pytest.raises(InputError, match=message):
        read(SCHEMA, SPREAD.replace(old, new, 1), "spread")
