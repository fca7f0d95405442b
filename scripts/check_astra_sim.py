"""A workload in ASTRA-sim beside ours: ``check_astra_sim.py BINARY [WORKLOAD] [--cluster NAME]``.

BINARY is ASTRA-sim with an analytical network (``AstraSim_Analytical_Congestion_Unaware`` or ``_Aware``) of
its own ``build/astra_analytical/build.sh``.  The workload goes out as ``export_chakra.py --for astra-sim``;
network and system files are made of the cluster: a switch per NVLink domain and one between them, rings (the
congestion-aware network of 2024 knows one dimension only: a job within a domain).  Without a workload it is
the small graph of the tests, and what this build says of it is written into their fixture.
Exit code 1: not all ranks finished.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.run.finished import export_chakra
from simcore.graph import Graph, apply_kernels, load_graph, usual_kernels
from simcore.hardware import DEFAULT_CLUSTER, ClusterSpec, load_cluster
from simcore.run import run
from workloads import catalog
from workloads.imports.chakra import export_chakra as export_chakra_of

_GB = 1 << 30  # what its network files call GB
_FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles, exposed communication (\d+) cycles")


def check(
    binary: Annotated[Path, typer.Argument(help="ASTRA-sim, analytical, congestion-unaware or -aware.")],
    workload: Annotated[
        str, typer.Argument(help="A catalog name, or a folder with an execution graph.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="Cluster profile.")] = DEFAULT_CLUSTER,
) -> None:
    """Run both and print their steps; without a workload, write the tests' fixture."""
    spec = load_cluster(cluster, {})
    with tempfile.TemporaryDirectory(prefix="astra") as place:
        folder = Path(place) / "files"
        if not workload:
            _record(binary, folder, spec)
            return
        graph = load_graph(workload) if Path(workload).is_dir() else catalog.load(workload)
        export_chakra(workload, folder, taker="astra-sim", cluster=cluster)
        cycles = _astra_sim(binary, folder, graph, spec)
    kernels = usual_kernels(graph)
    ours = run(apply_kernels(graph, kernels) if kernels else graph, spec).step_s
    theirs = max(finished for finished, _ in cycles.values()) / 1e9
    exposed = sum(exposed for _, exposed in cycles.values()) / len(cycles) / 1e9
    print(f"{graph.workload.name} on {spec.name}: ASTRA-sim {theirs:.6f} s, here {ours:.6f} s")
    print(f"ASTRA-sim's exposed communication, mean of the ranks: {exposed:.6f} s")


def _record(binary: Path, folder: Path, cluster: ClusterSpec) -> None:
    from tests.imports.test_astra_sim import ALONE_PS, RECORDED, digest_of
    from tests.imports.test_chakra import hand_built

    export_chakra_of(hand_built(), folder, astra_sim_ps=ALONE_PS)
    found = _astra_sim(binary, folder, hand_built(), cluster)
    files = digest_of(folder)
    known = json.loads(RECORDED.read_text(encoding="utf-8"))
    cycles = known["cycles"] if known["files"] == files else {}
    cycles[binary.name] = {str(rank): finished for rank, (finished, _) in sorted(found.items())}
    text = json.dumps({"files": files, "cycles": cycles}, indent=1)
    RECORDED.write_text(text + "\n", encoding="utf-8")
    print(f"{RECORDED}: {text}")


def _astra_sim(binary: Path, folder: Path, graph: Graph, cluster: ClusterSpec) -> dict[int, tuple[int, int]]:
    """Cycles (ns) at which each rank finished, and how many of them were exposed communication.

    Exits with 1 when some did not.
    """
    place = folder.parent
    per_domain = min(cluster.gpus_per_node * cluster.nodes_per_domain, graph.world_size)
    sizes = [per_domain, -(-graph.world_size // per_domain)]
    nics = cluster.nics_per_node / cluster.gpus_per_node
    speeds = [
        cluster.gpu.nvlink_bytes_per_s * cluster.gpu.nvlink_efficiency,
        cluster.nic_bytes_per_s * cluster.nic_efficiency * nics,
    ]
    latencies_ns = [5e8 * cluster.nvlink_latency_s, 5e8 * cluster.nic_latency_s]  # to a switch, and on
    dims = 1 if sizes[1] == 1 else 2
    network = {
        "topology": ["Switch"] * dims, "npus_count": sizes[:dims],
        "bandwidth": [speed / _GB for speed in speeds[:dims]], "latency": latencies_ns[:dims],
    }  # fmt: skip
    rings = {
        f"{name}-implementation": ["ring"] * dims
        for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    }
    system = {
        "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1, **rings, "collective-optimization": "localBWAware",
        "local-mem-bw": 1600, "boost-mode": 0, "roofline-enabled": 0, "peak-perf": 900,
    }  # fmt: skip
    files = {
        "network": ("network.yml", network), "system": ("system.json", system),
        "remote-memory": ("memory.json", {"memory-type": "NO_MEMORY_EXPANSION"}),
    }  # fmt: skip
    options = [f"--workload-configuration={folder / 'rank'}"]
    options.append(f"--comm-group-configuration={folder / 'comm_group.json'}")
    for kind, (name, content) in files.items():
        (place / name).write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
        options.append(f"--{kind}-configuration={place / name}")
    said = subprocess.run([binary, *options], capture_output=True, text=True, check=False, cwd=place)
    found = {int(rank): (int(end), int(exposed)) for rank, end, exposed in _FINISHED.findall(said.stdout)}
    if len(found) < graph.world_size:
        print(f"{said.stdout[-2000:]}\n{said.stderr[-2000:]}", file=sys.stderr)
        print(f"error: {len(found)} of {graph.world_size} ranks finished", file=sys.stderr)
        raise typer.Exit(1)
    return found


if __name__ == "__main__":
    typer.run(check)
