"""Chakra as ASTRA-sim takes it, and workloads of its kind played; times in us, arithmetic in comments."""

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.graph import save_graph
from simcore.hardware import load_cluster
from tests.imports.test_chakra import US, hand_built, stream
from workloads.imports.chakra import export_chakra
from workloads.imports.chakra.read import ChakraNode, read_nodes
from workloads.imports.chakra.schema import NodeType
from workloads.imports.files import TraceFile

COMP, SEND, RECV, COLL = NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL
#: Of the hand-built graph's rows: gemm, python, all_gather, use, send, copy, sync; recv, gemm, all_reduce.
ALONE_PS = [1_400_000, 5_000_000, 0, 7_400_000, 0, 400_000, 0, 0, 300_000, 0]


#: What builds of ASTRA-sim of 2026-03-25 (518bd51) said, with the feeder of 2025-04 (f37c2bb) and the
#: analytical network of 2024-11 (599a047): scripts/check_astra_sim.py BINARY.
RECORDED = Path(__file__).with_name("astra_sim.json")


def digest_of(folder: Path) -> str:
    """One digest of what ASTRA-sim reads of an export."""
    found = hashlib.sha256()
    for path in sorted([*folder.glob("*.et"), folder / "comm_group.json"]):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def nodes_of(folder, rank):
    return list(read_nodes(TraceFile(folder / f"rank.{rank}.et", None)))


def test_nodes_are_such_as_its_feeder_takes(tmp_path):
    export_chakra(hand_built(), tmp_path / "out", astra_sim_ps=ALONE_PS)
    assert json.loads((tmp_path / "out" / "comm_group.json").read_text()) == {
        "1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3],
    }  # fmt: skip
    nodes = nodes_of(tmp_path / "out", 1)
    # Neither the host's work nor its synchronisation is a node: the second microbatch comes after what that
    # waited for, the last of each stream.
    assert [node.type for node in nodes[:5]] == [COMP, COLL, COMP, SEND, COMP]
    assert not any(node.attributes["is_cpu_op"] for node in nodes)
    assert len(nodes) == 10
    assert [node.data_deps for node in nodes[:6]] == [(), (1,), (1, 2), (3,), (), (2, 3, 4, 5)]
    assert not any(node.ctrl_deps for node in nodes)
    # 1.4 is 1, 0.4 left; with 7.4 it is 7.8: 8, 0.2 too much; 1.4 less 0.2: 1, 0.2 left; with 7.4: 8.
    compute = [node.duration_ps // US for node in nodes if node.name in ("gemm", "use")]
    assert compute == [1, 8, 1, 8]
    # Copies of 0.4: 0 (not recorded), then 0.8 is 1.
    assert [node.duration_ps for node in nodes if node.name == "Memcpy DtoH"] == [-1, US]
    gather, send = nodes[1].attributes, nodes[3].attributes
    assert (gather["pg_name"], gather["comm_type"], gather["comm_size"]) == ("1", 2, 500)
    assert (send["comm_src"], send["comm_dst"], send["comm_tag"], send["comm_size"]) == (1, 3, 4, 4096)
    (received,) = {node.attributes["comm_src"] for node in nodes_of(tmp_path / "out", 3) if node.type == RECV}
    assert received == 1


def test_astra_sim_ran_these_files(tmp_path):
    """A recorded run; files that differ need another (scripts/check_astra_sim.py says how it is made)."""
    export_chakra(hand_built(), tmp_path / "out", astra_sim_ps=ALONE_PS)
    recorded = json.loads(RECORDED.read_text())
    assert digest_of(tmp_path / "out") == recorded["files"]
    # Ranks 0 and 1 compute 1 + 8 us twice, gather and send twice, 3 to 4 us each; 2 and 3 then add 1 us.
    assert [name.rpartition("_")[2] for name in sorted(recorded["cycles"])] == ["Aware", "Unaware"]
    for cycles in recorded["cycles"].values():
        first, last = cycles["0"], cycles["2"]
        assert cycles == {"0": first, "1": first, "2": last, "3": last}
        assert 30_000 < first < 34_000 and first + 1_000 == pytest.approx(last, abs=100)


def test_the_command_prices_kernels_on_a_cluster(tmp_path):
    save_graph(hand_built(), tmp_path / "graph")
    arguments = ["export-chakra", str(tmp_path / "graph"), "--out", str(tmp_path / "out"), "--ranks", "2"]
    found = CliRunner().invoke(app, [*arguments, "--for", "astra-sim", "--cluster", "h100-8", "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["nodes"] == 6
    # The graph tells 1,000 ps of the product: twice that is less than half a us.
    assert [node.duration_ps for node in nodes_of(tmp_path / "out", 2) if node.name == "gemm"] == [-1, -1]
    for more, reason in (
        (["--for", "astra"], "did you mean 'astra-sim'"),
        (["--cluster", "h100-8"], "--cluster needs --for astra-sim"),
    ):
        refused = CliRunner().invoke(app, [*arguments, *more])
        assert refused.exit_code == 2 and reason in refused.output


def played(folder, *more):
    found = CliRunner().invoke(app, ["replay", str(folder), "--json", *more])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_files_without_start_times_are_played(tmp_path):
    """Given durations hold, flops and bytes alone are priced by the GPU's peaks, collectives are planned."""
    gpu = load_cluster("h100-8", {}).gpu.under_load(2)
    flops = round(gpu.peak("bf16") * 100e-6)  # 100 us of products
    moved = round(gpu.hbm_bytes_per_s * gpu.hbm_efficiency * 40e-6)  # 40 us of reading
    for rank in (0, 1):
        nodes = [
            ChakraNode(1, "given", COMP, duration_ps=50 * US),
            ChakraNode(2, "products", COMP, (), (1,), attributes={"num_ops": flops, "tensor_size": 64}),
            ChakraNode(3, "reads", COMP, (), (2,), attributes={"num_ops": 1, "tensor_size": moved}),
            ChakraNode(4, "sum", COLL, (), (3,), attributes={"comm_type": 0, "comm_size": 1 << 20}),
        ]
        stream(tmp_path / f"job.{rank}.et", nodes)
    found = played(tmp_path, "--cluster", "h100-8")
    assert found["breakdown_s"]["exposed_compute"] == pytest.approx(190e-6, rel=1e-6)  # 50 + 100 + 40
    assert found["breakdown_s"]["exposed_communication"] > 0
    assert found["gpus"] == 2
    refused = CliRunner().invoke(app, ["replay", str(tmp_path), "--edit", "layers=2", "--step", "0"])
    assert refused.exit_code == 2
    assert "--step, --edit: there is no recorded step in what is given" in refused.output


def test_a_ring_of_messages_each_after_a_send(tmp_path):
    """Its sends need no receive: here the receive after one starts beside it."""
    for rank in range(3):
        to = {"comm_dst": (rank + 1) % 3, "comm_size": 1 << 20}
        by = {"comm_src": (rank - 1) % 3, "comm_size": 1 << 20}
        nodes = [
            ChakraNode(1, "send", SEND, attributes=to),
            ChakraNode(2, "receive", RECV, (), (1,), attributes=by),
            ChakraNode(3, "add", COMP, (), (2,), duration_ps=50 * US),
            ChakraNode(4, "send", SEND, (), (3,), attributes=to),
            ChakraNode(5, "receive", RECV, (), (4,), attributes=by),
        ]
        stream(tmp_path / f"job.{rank}.et", nodes)
    found = played(tmp_path, "--cluster", "h100-8")
    assert found["breakdown_s"]["exposed_compute"] == pytest.approx(50e-6)
    once = found["breakdown_s"]["exposed_communication"] / 2
    assert once > (1 << 20) / 450e9  # twice a message by NVLink
    assert 2 * once + 50e-6 < found["step_time_s"] < 2 * once + 65e-6  # launched after what they wait for


def test_a_run_folder_of_what_was_played(tmp_path):
    stream(tmp_path / "job.0.et", [ChakraNode(1, "given", COMP, duration_ps=50 * US)])
    found = played(tmp_path / "job.0.et", "--out", str(tmp_path / "run"))
    assert (tmp_path / "run" / "timeline.parquet").samefile(found["timeline"])
    assert found["breakdown_s"]["exposed_compute"] == pytest.approx(50e-6)
