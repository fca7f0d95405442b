"""The command ``bench imports``: what reading a recording of a million events costs, format by format."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from simcore.apps.child import run_python
from simcore.apps.options import Json
from simcore.apps.process import keep_freed_memory
from simcore.apps.progress import say
from simcore.errors import InputError, nearest

_LAYER: Final = 12  # kernels of a layer; each layer ends with a collective
_KERNELS: Final = ("ampere_bf16_gemm_128x64_tn", "vectorized_elementwise_kernel<4, add>", "layer_norm_kernel")
_REDUCES: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
_PID: Final = 1 << 48 | 100 << 24
Row = dict[str, Any]


def _name(index: int) -> str:
    return _REDUCES if index % _LAYER == _LAYER - 1 else _KERNELS[index % len(_KERNELS)]


def write_kineto(path: Path, events: int) -> int:
    """Quarters: a framework op with shapes, one inside it, a launch call and its kernel, 10 us apart."""
    meta = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
            "dtype": "BFloat16", "Group size": 8, "Process Group Name": "0"}  # fmt: skip
    with path.open("w", encoding="utf-8") as handle:
        handle.write('{"schemaVersion": 1, "traceEvents": [\n')
        for index in range(events // 4):
            at, comm = 10 * index, _name(index) == _REDUCES
            args = {"device": 0, "stream": 20 if comm else 7, "correlation": index + 1,
                    "grid": [432, 1, 1], "block": [128, 1, 1], "registers per thread": 64,
                    **(meta if comm else {})}  # fmt: skip
            shaped = {"External id": index + 1, "Input Dims": [[4096, 1024], [1024, 1024]],
                      "Input type": ["c10::BFloat16", "c10::BFloat16"]}  # fmt: skip
            rows = (
                ("cpu_op", "aten::linear", 9, 1, at, 9, shaped),
                ("cpu_op", "aten::mm", 9, 1, at + 1, 7, shaped),
                ("cuda_runtime", "cudaLaunchKernel", 9, 1, at + 2, 3, {"correlation": index + 1}),
                ("kernel", _name(index), 0, args["stream"], at + 12, 9.5, args),
            )
            for number, (cat, name, pid, tid, ts, dur, given) in enumerate(rows):
                event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
                         "args": given}  # fmt: skip
                handle.write((",\n" if index or number else "") + json.dumps(event))
        handle.write("]}\n")
    return events // 4 * 4


def write_nsys(path: Path, events: int) -> int:
    """Halves: launch calls and their kernels."""
    names = (*_KERNELS, _REDUCES, "cudaLaunchKernel")
    code = {name: number for number, name in enumerate(names)}
    count = events // 2
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME"
            " (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER, correlationId INTEGER)"
        )
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
            " streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER)"
        )
        base.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)",
            (
                (10_000 * i, 10_000 * i + 3_000, _PID + 1, code["cudaLaunchKernel"], i + 1)
                for i in range(count)
            ),
        )
        base.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, ?, ?, ?, ?)",
            (
                (10_000 * i + 12_000, 10_000 * i + 21_500, 20 if _name(i) == _REDUCES else 7, i + 1, _PID,
                 code[_name(i)])
                for i in range(count)
            ),
        )  # fmt: skip
        base.commit()
    return 2 * count


def write_execution_trace(path: Path, events: int) -> int:
    """Matrix products in a chain, on new storages."""
    with path.open("w", encoding="utf-8") as handle:
        handle.write('{"schema": "1.0.1", "pid": 1, "nodes": [\n')
        for index in range(events):
            tensors = [[3 * index + k, 3 * index + k, 0, 1 << 20, 2, "cuda:0"] for k in (1, 2, 4)]
            node = {"name": "aten::mm", "id": index + 2, "rf_id": index + 1, "parent": 1, "fw_parent": 0,
                    "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": "aten::mm(...)",
                    "inputs": tensors[:2], "input_shapes": [[1024, 1024]] * 2,
                    "input_types": ["Tensor(c10::BFloat16)"] * 2, "outputs": tensors[2:],
                    "output_shapes": [[1024, 1024]], "output_types": ["Tensor(c10::BFloat16)"]}  # fmt: skip
            handle.write((",\n" if index else "") + json.dumps(node))
        handle.write("]}\n")
    return events


def write_chakra(path: Path, events: int) -> int:
    """Nodes in a chain with times and sizes, collectives among them."""
    from workloads.imports.chakra.read import ChakraNode, write_nodes
    from workloads.imports.chakra.schema import NodeType

    def nodes() -> Iterator[ChakraNode]:
        for index in range(events):
            comm = _name(index) == _REDUCES
            given: dict[str, Any] = {"is_cpu_op": False, "num_ops": 2 << 30, "tensor_size": 1 << 20}
            if comm:
                given = {"is_cpu_op": False, "comm_type": 0, "comm_size": 1 << 21, "pg_name": "0"}
            yield ChakraNode(
                index + 1, _name(index), NodeType.COMM_COLL if comm else NodeType.COMP,
                data_deps=(index,) if index else (), start_ps=(10 * index + 1) * 10**6, duration_ps=9 * 10**6,
                attributes=given,
            )  # fmt: skip

    with path.open("wb") as handle:
        return write_nodes(handle, nodes())


#: Formats by name: the file's name, and what writes one of about so many events and returns their number.
FORMATS: Final[dict[str, tuple[str, Callable[[Path, int], int]]]] = {
    "kineto": ("trace.json", write_kineto),
    "nsys": ("trace.sqlite", write_nsys),
    "execution-trace": ("et.json", write_execution_trace),
    "chakra": ("rank.0.et", write_chakra),
}


def measure_import(name: str, events: int) -> Row:
    """Import a file of ``events`` in a new process: ``format, events, file_bytes, gpu_ops, wall_s, cpu_s,
    peak_rss_bytes``; the time of starting Python is not in it.
    """
    file, write = FORMATS[name]
    with tempfile.TemporaryDirectory(prefix="bench-imports-") as folder:
        path = Path(folder) / file
        written = write(path, events)
        found = json.loads(run_python(["-m", "simcore.apps.bench.imports", str(path)]).stdout)
        size = path.stat().st_size
    return {"format": name, "events": written, "file_bytes": size, **found}


def _import_here(path: Path) -> Row:
    import resource
    import time

    from workloads.imports import import_traces

    wall, cpu = time.perf_counter(), time.process_time()
    job = import_traces([path])
    return {
        "gpu_ops": sum(rank.gpu_ops for rank in job.report.ranks),
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def bench_imports(
    formats: Annotated[list[str] | None, typer.Argument(help="Formats. Default: all.")] = None,
    events: Annotated[int, typer.Option(help="Events of each file.", min=100)] = 1_000_000,
    as_json: Json = False,
) -> None:
    """What importing a recording costs: files written for it, each read in a process of its own."""
    for name in formats or ():
        if name not in FORMATS:
            raise InputError(f"unknown format {name!r}{nearest(name, FORMATS)}")
    rows = []
    for name in formats or FORMATS:
        say(f"{name}: {events:,} events ...")
        rows.append(measure_import(name, events))
    print(json.dumps({"rows": rows})) if as_json else _print_table(rows)


def _print_table(rows: Sequence[Row]) -> None:
    print(
        f"{'format':<17}{'events':>11}{'GPU ops':>11}{'file MB':>9}{'wall s':>8}{'CPU s':>8}{'peak MiB':>10}"
    )
    for row in rows:
        print(
            f"{row['format']:<17}{row['events']:>10,}{row['gpu_ops']:>10,}{row['file_bytes'] / 1e6:>10.0f}"
            f"{row['wall_s']:>10.1f}{row['cpu_s']:>10.1f}{row['peak_rss_bytes'] / 1024**2:>10,.0f}"
        )


def _child(path: Path) -> None:
    keep_freed_memory()  # as commands do
    print(json.dumps(_import_here(path)))


if __name__ == "__main__":
    typer.run(_child)
