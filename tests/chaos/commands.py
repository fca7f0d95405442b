"""Commands that write something, and what may be at its place: nothing, the old, the new, never a part."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from simcore.apps.run.outcome import OUTCOMES
from simcore.errors import InputError
from simcore.files import MANIFEST, check_folder
from simcore.timeline import Timeline

_ROW = {
    "family": "new", "model": "GPT-3 tiny", "layers": "4", "heads": "16", "kv_heads": "16", "vocab": "51200",
    "seq": "2048", "gpus": "8", "gpu_type": "H100", "tp": "2", "pp": "1", "global_batch": "8",
    "micro_batch": "2", "precision": "bf16", "sp": "yes", "recompute": "none", "metric": "step_time_s",
    "value": "0.1", "quality": "A",
}  # fmt: skip
_JOB = {
    "model": {"layers": 1, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024}, "cluster": "h100-8",
    "training": {"seq": 128, "micro_batch": 1},
}  # fmt: skip
_SCRIPT = """
import torch
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Command:
    """A command of ``simcore`` that writes ``target``, as "old" or as "new".

    ``arguments`` of a version, files of the inputs being ``{0}/NAME``.  ``parts``: what is at a path as a set
    of things that come whole; InputError when one is not.  A command that ``grows`` its file may leave some
    of them.  ``share`` of the kills.
    """

    name: str
    target: str
    arguments: Callable[[str], str]
    parts: Callable[[Path], frozenset[str]]
    share: int = 10
    grows: bool = False
    workers: bool = False


def _run(path: Path) -> frozenset[str]:
    timeline = Timeline.open(path)
    if timeline.digest() != timeline.info.digest:
        raise InputError(f"{path}: rows are not those of the digest")
    return frozenset({f"seed {timeline.info.seed} {timeline.info.network} {timeline.info.digest}"})


def _folder(kind: str) -> Callable[[Path], frozenset[str]]:
    def parts(path: Path) -> frozenset[str]:
        check_folder(path, kind)
        return frozenset({(path / MANIFEST).read_text()})

    return parts


def _file(path: Path) -> frozenset[str]:
    return frozenset({path.read_bytes().hex()})


def _lines(path: Path, result: str = "result") -> frozenset[str]:
    """Results by key; what a line says must be a result."""
    found = path.read_text().splitlines()
    try:
        entries = [json.loads(line) for line in found]
        return frozenset(f"{entry['key']} {float(entry[result])}" for entry in entries)
    except (ValueError, KeyError) as error:
        raise InputError(f"{path}: a line is damaged: {error}") from None


def _swept(path: Path) -> frozenset[str]:
    """A sweep's outcomes by key, and its rows."""
    store, table = path / OUTCOMES, path / "cases.parquet"
    found = _lines(store, "step_time_s") if store.exists() else frozenset()
    try:
        rows = pq.read_table(table).to_pylist() if table.exists() else []
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{table}: {error}") from None
    if any(row["status"] != "done" for row in rows):
        raise InputError(f"{table}: a case is not done")
    return found | {repr(row) for row in rows}


#: Every command that keeps something on disk is registered here.
COMMANDS = [
    Command(
        "run",
        "run",
        lambda which: f"run-sim {{0}}/tiny --out run --force --seed {1 + (which == 'new')}",
        _run,
        30,
    ),
    Command(
        "replay",
        "replayed",
        lambda which: f"replay {{0}}/{which}.json --out replayed --force",
        _run,
        20,
    ),
    Command(
        "validate",
        "times.jsonl",
        lambda which: f"validate --runs {{0}}/{which}.csv --cache times.jsonl",
        _lines,
        20,
        grows=True,
        workers=True,
    ),
    Command(
        "sweep",
        "swept",
        lambda which: f"sweep {{0}}/{which}.yaml --out swept --workers 2",
        _swept,
        20,
        grows=True,
        workers=True,
    ),
    Command(
        "report",
        "step.json.gz",
        lambda which: f"report {{0}}/run --perfetto step.json.gz --ranks {int(which == 'new')}",
        _file,
        10,
    ),
]
if importlib.util.find_spec("google.protobuf") is not None:
    COMMANDS.append(
        Command(
            "export-chakra",
            "chakra",
            lambda which: f"export-chakra {{0}}/tiny --out chakra --ranks {'0' if which == 'old' else '0,1'}",
            _folder("Chakra export"),
            15,
        )
    )
if importlib.util.find_spec("torch") is not None:
    COMMANDS.append(
        Command(
            "trace",
            "graph",
            lambda which: f"trace-workload script {{0}}/step.py --world-size 1 --name {which} --out graph",
            _folder("graph"),
            2,
        )
    )


def sweep_spec_of(batches: list[int]) -> str:
    """A sweep over global batches of a small job."""
    return json.dumps({**_JOB, "grid": {"training.global_batch": batches}})


def write_inputs(folder: Path) -> None:
    """What the commands read: small enough that each of them takes about a tenth of a second."""
    from simcore.apps.bench.imports import write_kineto
    from simcore.graph import one_f_one_b, save_graph
    from tests.pipelines import pipeline_graph

    ms = 10**9
    graph = pipeline_graph(one_f_one_b(2, 3), forward=ms, backward=2 * ms, num_bytes=1024, name="tiny")
    save_graph(graph, folder / "tiny")
    for which, events in (("old", 200), ("new", 400)):
        write_kineto(folder / f"{which}.json", events)
    for which, sizes in (("old", (1024,)), ("new", (1024, 2048, 4096))):
        rows = [{**_ROW, "id": f"r{size}", "hidden": str(size), "ffn": str(4 * size)} for size in sizes]
        with (folder / f"{which}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    for which, batches in (("old", [8]), ("new", [8, 16, 24, 32])):
        (folder / f"{which}.yaml").write_text(sweep_spec_of(batches))
    (folder / "step.py").write_text(_SCRIPT)
