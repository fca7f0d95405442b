"""Formats of what is stored: graph and run folders, tables of measurements, files beside profiles."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simcore.apps.measured.kernels import COLUMNS as KERNEL_COLUMNS
from simcore.apps.run.loading import check_dims, chosen_interference
from simcore.apps.validate.layers import COLUMNS as LAYER_COLUMNS
from simcore.cost import MeasuredTable
from simcore.graph import load_graph, save_graph, verify
from simcore.hardware import load_cluster
from simcore.run import Setup, run
from tests.apps.validate import test_nccl, test_peak_memory, test_profile_gpu
from tests.cost import test_validate
from tests.fuzz.cases import Answer, Case, Format, register
from tests.fuzz.described import PROFILES, h100s, small_graph, sound
from tests.fuzz.ended import commanded
from tests.fuzz.mutate import Mutated, as_json, document, pick, some_bytes, some_lines
from tests.graph.examples import data_parallel, two_stages
from tests.hardware import test_node_xml
from tests.ring import write_ring_run
from tests.synthetic import write_two_stage_run

Files = dict[str, bytes]
SEALED = ("sealed",)  # changed though a manifest says how it was: nobody may take it


def read_back(write: Callable[[Path], object]) -> Files:
    """The files of the folder that ``write`` makes."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name) / "a")
        return {path.name: path.read_bytes() for path in sorted((Path(name) / "a").iterdir())}


@cache
def _graphs() -> list[Files]:
    return [read_back(partial(save_graph, graph)) for graph in (two_stages(), data_parallel(), small_graph())]


@cache
def runs() -> list[Files]:
    """Run folders, made by hand."""
    return [read_back(write) for write in (write_two_stage_run, write_ring_run)]


def _folder(name: str, holds: str, seeds: Callable[[], list[Files]], rng: Random, bare: float = 0.0) -> Case:
    """A folder with one file changed: behind the back of its manifest, or with a manifest that agrees."""
    files = dict(pick(seeds(), rng))
    which = rng.choice(sorted(files))
    before = files[which]
    if which == "manifest.json":
        files[which], _ = document(json.loads(before), as_json, rng)
        return Case(name, files)
    if rng.random() < 0.25:
        files[which] = some_bytes(before, rng)
        return Case(name, files, SEALED if files[which] != before else ())
    files[which] = _changed_file(which, before, rng)
    del files["manifest.json"]
    if rng.random() >= bare:
        files["manifest.json"] = _manifest(holds, files)
    return Case(name, files)


def _changed_file(name: str, data: bytes, rng: Random) -> bytes:
    if name.endswith(".json"):
        return document(json.loads(data), as_json, rng)[0]
    if name.endswith(".parquet") and rng.random() < 0.8:
        return _changed_table(data, rng)
    return some_bytes(data, rng)


def _changed_table(data: bytes, rng: Random) -> bytes:
    table = _columns(data)
    columns = {column: table.column(column) for column in table.column_names}
    column = rng.choice(table.column_names)
    what = rng.randrange(6)
    if what == 0:
        del columns[column]
    elif what == 1:
        columns[rng.choice((column + "s", ""))] = columns[column]
    elif what == 2:
        columns = {name: values.slice(0, len(values) // 2) for name, values in columns.items()}
    else:
        values = Mutated(columns[column].to_pylist(), rng).value
        columns[column] = _array(values, columns[column].type, len(table))
    held = io.BytesIO()
    try:
        pq.write_table(pa.table(columns).replace_schema_metadata(table.schema.metadata), held)
    except (pa.ArrowException, ValueError):  # columns of other lengths, or of what no file holds
        return some_bytes(data, rng)
    return held.getvalue()


@cache
def _columns(data: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(data), use_threads=False)


def _array(values: Any, kind: pa.DataType, length: int) -> pa.Array:
    """Values as a column of ``kind``, or of what they are, or of texts."""
    values = values if isinstance(values, list) else [values] * length
    for attempt in (kind, None, pa.string()):
        try:
            plain = [repr(value)[:99] for value in values] if attempt == pa.string() else values
            return pa.array(plain, type=attempt)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            continue
    return pa.nulls(length)


def _manifest(holds: str, files: Files) -> bytes:
    described = {
        name: {"bytes": len(data), "blake2b": hashlib.blake2b(data, digest_size=16).hexdigest()}
        for name, data in files.items()
    }
    return json.dumps({"format": 1, "holds": holds, "files": described}).encode()


def _sealed(answer: Answer, case: Case) -> Answer:
    return replace(answer, wrong="a changed folder was accepted") if case.words[:1] == SEALED else answer


def _graph_door(given: Path, case: Case) -> Answer:
    graph = load_graph(given)
    check_dims(graph)
    told = verify(graph)
    cluster = h100s()
    ran = run(graph, cluster)
    return _sealed(sound(Answer(ran.step_s, told), ran, graph, cluster, Setup(), case), case)


def _report_door(given: Path, case: Case) -> Answer:
    return _sealed(commanded("report", given, "--json"), case)


def _shown_door(given: Path, case: Case) -> Answer:
    """Tables, and all that can be exported."""
    try:
        words = ("--critical-path", "--perfetto", "out.json.gz", "--kineto", "out.kineto.json.gz")
        return _sealed(commanded("report", given, *words), case)
    finally:
        for path in Path().glob("out*"):  # what was written before another thing was refused is whole
            path.unlink()


def _compare_door(given: Path, case: Case) -> Answer:
    other = given.parent / "other"
    try:
        for name, data in runs()[0].items():
            other.mkdir(exist_ok=True)
            (other / name).write_bytes(data)
        return _sealed(commanded("compare", given, other, "--json"), case)
    finally:
        for path in other.iterdir():
            path.unlink()
        other.rmdir()


def _table(columns: Sequence[str], *rows: dict[str, object]) -> bytes:
    lines = [",".join(columns)]
    lines += [
        ",".join(f'"{row[c]}"' if "," in str(row.get(c, "")) else str(row.get(c, "")) for c in columns)
        for row in rows
    ]
    return ("\n".join(lines) + "\n").encode()


_LAYERS = {
    "gpu": "A100-80GB",
    "model": "22B: 48 layers, hidden 6144, 64 heads, seq 2048, TP8, micro batch 4, fp16",
}
_MEASURED = b"""op_class,dtype,time_us,in_shapes,out_shapes,bytes
gemm,bfloat16,12.5,"[[64,256],[256,256]]","[[64,256]]",
elementwise,bfloat16,3,,,1000
elementwise,bfloat16,30,,,1000000
"""


@cache
def tables() -> dict[str, bytes]:
    kernels = _table(
        KERNEL_COLUMNS,
        {**test_validate.GEMM, "time_us": 540.0},
        test_validate.ATTENTION,
    )
    layer = (*_LAYERS.values(), "one transformer layer", "no recompute", 7.7, 11.9, 19.6)
    layers = _table(LAYER_COLUMNS, dict(zip(LAYER_COLUMNS, layer, strict=True)))
    nccl = _table(test_nccl.COLUMNS, test_nccl.ROW, {**test_nccl.ROW, "bytes": 1 << 20, "time_us": 40})
    memory = "\n".join([test_peak_memory.HEADER, test_peak_memory.TORCHTITAN, ""]).encode()
    small = test_peak_memory.TORCHTITAN.replace("8.03,32,4096,32,8,", "8.03,2,1024,8,8,").replace(
        "32768", "1024"
    )
    runs = "\n".join([test_peak_memory.HEADER, small, ""]).encode()
    return {"kernels": kernels, "layers": layers, "nccl": nccl, "memory": memory, "runs": runs}


def _table_case(rng: Random) -> Case:
    kind = rng.choice(sorted(tables()))
    damage = some_lines if rng.random() < 0.8 else some_bytes
    return Case("table", {"t.csv": damage(tables()[kind], rng)}, (kind,))


def _table_door(given: Path, case: Case) -> Answer:
    return commanded("validate", f"--{case.words[0]}", given / "t.csv", "--json")


def _times_case(rng: Random) -> Case:
    return Case("kernel_times", {"t.csv": (some_lines if rng.random() < 0.8 else some_bytes)(_MEASURED, rng)})


def _times_door(given: Path, case: Case) -> Answer:
    tables = (MeasuredTable.load(given / "t.csv"),)
    return Answer(run(small_graph(), h100s(), Setup(tables=tables)).step_s)


@cache
def measured_gpu() -> Files:
    """What ``profile-gpu`` keeps of a GPU."""

    def write(folder: Path) -> None:
        folder.mkdir()
        test_profile_gpu.write_sample(folder)

    return read_back(write)


def _measured_case(rng: Random) -> Case:
    files = dict(measured_gpu())
    which = rng.choice(sorted(files))
    if which.endswith(".json"):
        files[which], _ = document(json.loads(files[which]), as_json, rng)
    else:
        files[which] = (some_lines if rng.random() < 0.8 else some_bytes)(files[which], rng)
    return Case("measured_gpu", files)


def _measured_door(given: Path, case: Case) -> Answer:
    shutil.copytree(given, "gpu")  # a profile is written there
    try:
        return commanded("profile-gpu", "--fit-only", "gpu", "--json")
    finally:
        shutil.rmtree("gpu")


def _xml_case(rng: Random) -> Case:
    damage = some_lines if rng.random() < 0.5 else some_bytes
    return Case("node_xml", {"n.xml": damage(test_node_xml.PCIE_BOX.encode(), rng)})


def _xml_door(given: Path, case: Case) -> Answer:
    return Answer(
        run(small_graph(), load_cluster("a100-16", {"cluster.node_xml": str(given / "n.xml")})).step_s
    )


@cache
def _learned() -> Any:
    content = json.loads((PROFILES / "interference" / "recorded.json").read_text())
    content["trees"] = content["trees"][:3]
    return content


def _learned_case(rng: Random) -> Case:
    return Case("interference", {"i.json": document(_learned(), as_json, rng)[0]})


def _learned_door(given: Path, case: Case) -> Answer:
    learned = chosen_interference(f"learned:{given / 'i.json'}")
    return Answer(run(small_graph(), h100s(), Setup(learned=learned)).step_s)


register([
    Format("graph", partial(_folder, "graph", "graph", _graphs, bare=0.7), _graph_door),
    Format("report", partial(_folder, "report", "run", runs), _report_door),
    Format("export", partial(_folder, "export", "run", runs), _shown_door),
    Format("compare", partial(_folder, "compare", "run", runs), _compare_door),
    Format("table", _table_case, _table_door),
    Format("kernel_times", _times_case, _times_door),
    Format("measured_gpu", _measured_case, _measured_door),
    Format("node_xml", _xml_case, _xml_door),
    Format("interference", _learned_case, _learned_door),
])  # fmt: skip
