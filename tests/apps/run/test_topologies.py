"""Clusters of one's own from the command line: runs, folding, placement in the record, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from simcore.graph import GraphBuilder, save_graph
from simcore.timeline import RunInfo

MB = 1_000_000
PROFILES = Path(__file__).parents[3] / "hardware_profiles" / "cluster"


@pytest.fixture
def graph_dir(tmp_path: Path) -> Path:
    """16 ranks: all_reduces among four neighbours and over all."""
    build = GraphBuilder(16, name="rings", precision="fp16")
    build.group("tp", ((4, 1),))
    build.group("dp", ((16, 1),))
    template = build.template("fwd")
    for _ in range(2):
        template.collective("all_reduce", "tp", 8 * MB, stream="compute")
        template.collective("all_reduce", "dp", 16 * MB, stream="compute")
    build.program(range(16), [(template, 0, 0)])
    save_graph(build.build(), tmp_path / "rings")
    return tmp_path / "rings"


Simulate = Callable[..., dict[str, Any]]


@pytest.fixture
def step(run: Callable[..., Result], graph_dir: Path, tmp_path: Path) -> Simulate:
    """The JSON object of a run, after comparing its digest with the unfolded one."""

    def simulate(*arguments: str) -> dict[str, Any]:
        digests = []
        for name, more in (("plain", ["--no-fold"]), ("folded", [])):
            result = run(
                "run-sim", graph_dir, "--json", "--force", "--out", tmp_path / name, *more, *arguments
            )
            assert result.exit_code == 0, result.output
            digests.append(RunInfo.read(tmp_path / name).digest)
        assert digests[0] == digests[1]
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    return simulate


@pytest.mark.parametrize("network", ["alphabeta", "fluid"])
@pytest.mark.parametrize("cluster", ["dgx1v-16", "hgx4-a100-16", "h100-fat-tree-16"])
def test_profiles_of_every_kind_run(step: Simulate, cluster: str, network: str) -> None:
    assert step("--cluster", cluster, "--network", network)["step_time_s"] > 0


def test_a_file_of_ones_own(step: Simulate, tmp_path: Path) -> None:
    source = (PROFILES / "dgx1v.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(source)
    plain = step("--cluster", str(mine))
    mine.write_text(source.replace('gpu = "v100"', 'gpu = "v100"\nplacement = "round_robin"'))
    dealt = step("--cluster", str(mine))
    # Groups of four then cross nodes: 2 x 3/4 x 8 MB over a NIC of 12 GB/s instead of NVLink.
    assert dealt["step_time_s"] > plain["step_time_s"]
    assert any("dealt to the 4 nodes" in line for line in RunInfo.read(tmp_path / "folded").assumptions)


def test_a_permutation_within_nodes_changes_nothing(step: Simulate) -> None:
    plain = step("--cluster", "h800-16")
    gpus = "3,0,1,2,7,6,5,4,8,11,10,9,12,13,15,14"
    permuted = step("--cluster", "h800-16", "--set", f"cluster.placement={gpus}")
    assert permuted["step_time_s"] == plain["step_time_s"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--set", "cluster.placment=linear"], "did you mean 'cluster.placement'?"),
        (["--set", "cluster.placement=nodes:0"], "rank 8 and later ones are not placed"),
        (["--set", "cluster.placement=lines"], "placement cannot be 'lines'; did you mean 'linear'?"),
        (["--set", "cluster.intra_node=nvlink", "--set", "cluster.nvlinks=[[0,1,8]]"], "are not connected"),
        (["--set", "cluster.nic_bytes_per_s=0"], "cluster.nic_bytes_per_s: must be positive"),
        (["--set", "cluster.node_xml=none.xml"], "cannot read description of a node 'none.xml'"),
        (["--set", "cluster.nic_of_gpu=0,1"], "nic_of_gpu lists 2 GPUs, but a node has 8"),
        (["--set", "link.node.0.nvlink.0.1.bytes_per_s=1e9"], "unknown link 'node.0.nvlink.0.1'"),
    ],
)
def test_what_cannot_be_ends_with_2(
    run: Callable[..., Result], graph_dir: Path, arguments: list[str], complaint: str
) -> None:
    result = run("run-sim", graph_dir, "--cluster", "h800-16", *arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())
