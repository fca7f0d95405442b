"""Settings of single ranks, nodes and links, and noise: they reach the engine, folded and unfolded alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.graph import GraphBuilder, save_graph
from simcore.timeline import RunInfo, Timeline

# 16 ranks on two nodes: GEMMs of 2 x 4096^3 flops, an all_reduce in each node, one across the nodes.
RANKS = 16


@pytest.fixture(scope="module")
def graph_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = GraphBuilder(RANKS, name="irregular", precision="bf16")
    build.group("tp", ((8, 1),))
    build.group("dp", ((2, 8),))
    template = build.template("fwd")
    shapes = json.dumps([[4096, 4096], [4096, 4096]])
    for _ in range(3):
        template.compute(
            "aten::mm", op_class="gemm", dtype="bfloat16", in_shapes=shapes, out_shapes="[[4096,4096]]",
            flops=2 * 4096**3, bytes_read=2 * 2 * 4096**2, bytes_written=2 * 4096**2,
        )  # fmt: skip
        template.collective("all_reduce", "tp", 1 << 20, stream="compute")
        template.collective("all_reduce", "dp", 1 << 24, stream="compute")
    build.program(range(RANKS), [(template, 0, 0)])
    folder = tmp_path_factory.mktemp("graphs") / "irregular"
    save_graph(build.build(), folder)
    return folder


@pytest.fixture
def step(graph_dir: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run twice, folded and unfolded, compare digests; the folded JSON object."""

    def simulate(*settings: str) -> dict[str, Any]:
        found = []
        for name, more in (("folded", []), ("plain", ["--no-fold"])):
            arguments = [str(graph_dir), "--json", "--force", "--out", str(tmp_path / name), *more]
            for setting in settings:
                arguments += ["--set", setting]
            result = CliRunner().invoke(app, ["run-sim", *arguments])
            assert result.exit_code == 0, result.output
            found.append(json.loads(result.stdout))
        assert RunInfo.read(tmp_path / "folded").digest == RunInfo.read(tmp_path / "plain").digest
        assert found[1]["rank_classes"] == RANKS
        return found[0]

    return simulate


def test_nothing_set(step: Callable[..., dict[str, Any]]) -> None:
    assert step()["rank_classes"] == 1


def test_a_straggler_slows_the_step_and_refines_its_groups(
    step: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    healthy = step()["step_time_s"]
    found = step("rank.5.gpu.clock=0.5")
    # Three GEMMs of 2 * 4096^3 flops take at least 139 us at 989 Tflop/s, and now twice as long.
    assert found["step_time_s"] > healthy + 3 * 2 * 4096**3 / 989e12
    # Itself; the rest of its node; its peer on the other node; the rest of that node.
    assert found["rank_classes"] == 4
    classes = Timeline.open(tmp_path / "folded").classes["rank_class"].tolist()
    assert classes == [0] * 5 + [1] + [0] * 2 + [2] * 5 + [3] + [2] * 2


def test_links_and_nodes(step: Callable[..., dict[str, Any]]) -> None:
    healthy = step()["step_time_s"]
    assert step("link.nic.1.3.out.bytes_per_s=1GB/s")["step_time_s"] > 2 * healthy
    slow = step("node.1.extra_latency_s=1ms")
    assert slow["step_time_s"] > healthy + 3e-3
    assert slow["rank_classes"] == 2  # the two nodes


def test_noise_unfolds(step: Callable[..., dict[str, Any]]) -> None:
    found = step("noise.sigma=0.1")
    assert found["rank_classes"] == RANKS
    assert "noise makes every rank different: nothing was folded" in found["warnings"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["rank.16.gpu.clock=0.8"], "rank.16: the job has ranks 0 to 15"),
        (
            ["rank.3.gpu.hbm_bytes=1GB"],
            "cannot be set for a single rank; did you mean 'rank.3.gpu.hbm_bytes_per_s'?",
        ),
        (["node.12.extra_latency_s=1us"], "node.12: cluster 'h800-96' has nodes 0 to 11"),
        (["node.1.latency=1us"], "did you mean 'node.1.extra_latency_s'?"),
        (["node.1.extra_latency_s=1parsec"], "'parsec' is not a unit of time"),
        (["node.1.extra_latency_s=1e30"], "node.1.extra_latency_s: must be at most 1"),
        (["node.x.extra_latency_s=1us"], "did you mean 'node.<n>.extra_latency_s'?"),
        ([f"rank.{'9' * 5000}.gpu.clock=1"], "unknown setting"),
        (["rank.3.gpu.clock=0"], "rank.3: override gpu.clock: must be positive"),
        (["noise.sigma=-1"], "noise.sigma: must be 0 or more"),
        (["noise.sigma=nan"], "noise.sigma"),
        (["link.nic.77.0.out.bytes_per_s=1GB/s"], "unknown link 'nic.77.0.out'"),
        (["rank.1.gpu.clock=0.5", "rank.1.gpu.clock=0.6"], "is given both '0.5' and '0.6'"),
        (
            ["node.1.extra_latency_s=1us", "link.nic.1.0.in.latency_s=1us"],
            "contradicts link.nic.1.0.in.latency_s",
        ),
    ],
)
def test_refused(graph_dir: Path, tmp_path: Path, settings: list[str], message: str) -> None:
    arguments = [str(graph_dir), "--out", str(tmp_path / "out")]
    for setting in settings:
        arguments += ["--set", setting]
    result = CliRunner().invoke(app, ["run-sim", *arguments])
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()
