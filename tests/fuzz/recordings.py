"""Formats of what was recorded: profiler traces, execution traces, databases, Chakra, XLA, logs."""

from __future__ import annotations

import gzip
import io
import json
import re
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from simcore.apps.replay.edits import edit_recording
from simcore.apps.replay.insight import step_insights
from simcore.apps.replay.levels import play_level
from simcore.apps.replay.show import replay_object
from simcore.apps.replay.stragglers import analyse_stragglers
from simcore.errors import InputError
from simcore.graph.schedules import one_f_one_b
from tests.edits import pipelines
from tests.fuzz.cases import Answer, Case, Format, register
from tests.fuzz.mutate import Mutated, as_json, document, packed, pick, some_bytes, some_lines
from tests.imports import (
    nsys_files,
    test_chakra,
    test_execution_traces,
    test_nsys,
    test_pipeline_log,
    test_stragglers,
    test_trace_viewer,
    test_xla,
    traces,
)
from workloads.imports import import_traces
from workloads.imports.chakra import export_chakra
from workloads.imports.chakra.read import ChakraNode, write_nodes

Files = dict[str, bytes]
_EDITS = [
    "layers=2:4", "pp=2:4", "schedule=gpipe", "num_microbatches=8", "kernel.gemm.speed=2",
    "remove.communication", "cuda_graphs", "host.speed=2", "schedule=interleaved:2", "straggler.1=remove",
    "dp=2:4", "network=a100-8", "num_microbatches=1e9", "hidden=512",
]  # fmt: skip


def _written(*builds: Callable[[Path], object]) -> list[Files]:
    """What each of ``builds`` writes into a folder, unpacked."""
    found = []
    for build in builds:
        with tempfile.TemporaryDirectory() as name:
            build(Path(name))
            files = {path.name: path.read_bytes() for path in sorted(Path(name).iterdir())}
        found.append({
            name.removesuffix(".gz"): gzip.decompress(data) if name.endswith(".gz") else data
            for name, data in files.items()
        })  # fmt: skip
    return found


def _words(rng: Random) -> tuple[str, ...]:
    """How the replay is asked for: level, gaps, cluster, edits."""
    what = rng.random()
    if what < 0.8:
        return ()
    if what < 0.9:
        return tuple(rng.choice(_EDITS) for _ in range(rng.choice((1, 1, 2))))
    return (rng.choice(("level=communication", "level=shapes", "gaps=typical")),)


def _json_case(name: str, seeds: Callable[[], list[Files]], rng: Random) -> Case:
    """One of a seed's JSON files changed, some packed."""
    files = dict(pick(seeds(), rng))
    which = rng.choice(sorted(files))
    text, _ = document(_parsed(files[which]), as_json, rng)
    files[which] = text
    if rng.random() < 0.08:
        files[f"{which}.gz"] = packed(files.pop(which), rng)
    elif rng.random() < 0.03:
        files = {"all.tar": _archived(files, rng)}
    return Case(name, files, _words(rng))


@cache
def _parsed(data: bytes) -> Any:
    return json.loads(data)


def _archived(files: Files, rng: Random) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(rng.choice((name, name, f"../{name}", f"/{name}", f"a/{name}")))
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return held.getvalue() if rng.random() < 0.6 else some_bytes(held.getvalue(), rng)


def replayed(paths: list[Path], words: tuple[str, ...]) -> Answer:
    """What ``replay`` says of files."""
    said = dict(word.split("=", 1) for word in words if word.startswith(("level=", "gaps=")))
    edits = [word for word in words if not word.startswith(("level=", "gaps="))]
    job = import_traces(paths, gaps=said.get("gaps", "recorded"))
    if not job.ranks:
        raise InputError("there is no recorded step to replay")
    stragglers = analyse_stragglers(job)
    level = said.get("level", "recorded")
    job, changes = edit_recording(job, edits, None, level)
    replay = play_level(job, level)
    steps = replay.steps(None)
    shown = replay_object(job, steps, step_insights(replay, steps))
    shown["edits"] = [change.as_object() for change in changes]
    shown["stragglers"] = stragglers.as_object() if stragglers is not None else None
    seconds = max(step["predicted_s"] for step in shown["steps"])
    return Answer(seconds or None, shown)  # kernels may be recorded to take no time


def _files_door(given: Path, case: Case) -> Answer:
    return replayed(sorted(given / name for name in case.files), case.words)


def _folder_door(given: Path, case: Case) -> Answer:
    return replayed([given], case.words)


def _reduce(ts: float, corr: int) -> list[traces.Event]:
    args = {"Collective name": "allreduce", "In msg nelems": 8192, "Out msg nelems": 8192, "Group size": 2,
            "dtype": "Float", "Process Group Name": "dp", "Process Group Ranks": "[0, 1]"}  # fmt: skip
    return traces.launched("ncclDevKernel_AllReduce", ts - 30, ts, 20, corr=corr, stream=20, **args)


def _kineto_ranks(folder: Path) -> None:
    for rank in (0, 1):
        events = [
            *(event for number in (1, 2) for event in (
                traces.step(number, 200 * number, 180),
                traces.framework_call("aten::mm", 200 * number + 1, 20),
                *traces.launched("gemm", 200 * number + 2, 200 * number + 10, 40, corr=10 * number),
                *_reduce(200 * number + 60, 10 * number + 1),
                traces.call("cudaDeviceSynchronize", 200 * number + 50, 40, corr=10 * number + 2),
                traces.sync_record("Context Sync", 10 * number + 2),
            )),
        ]  # fmt: skip
        header = {"distributedInfo": {"rank": rank, "world_size": 2},
                  "deviceProperties": [{"name": "NVIDIA H100 80GB HBM3", "numSms": 132}]}  # fmt: skip
        traces.write(folder / f"r{rank}.json", events, **header)


@cache
def kineto() -> list[Files]:
    args = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["c10::BFloat16"] * 2}
    one = [
        traces.step(1, 0, 100),
        test_execution_traces.cpu_op("aten::mm", 1, 20, **args),
        *traces.launched("gemm", 2, 10, 40, corr=1),
        *traces.launched("relu", 12, 50, 20, corr=2, stream=8),
        *traces.launched("Memcpy DtoD", 20, 75, 5, corr=3),
    ]
    return _written(
        lambda folder: traces.write(folder / "t.json", one),
        _kineto_ranks,
        lambda folder: pipelines.record(folder, one_f_one_b(2, 2), 2),
    )


@cache
def _execution() -> list[Files]:
    tests = test_execution_traces

    def alone(schema: str, folder: Path) -> None:
        tests.trace(folder / "et.json", tests.matmuls(schema), schema)

    def joined(schema: str, folder: Path) -> None:
        alone(schema, folder)
        tests.timed(folder / "k.json", True)

    schemas = ("1.0.1", "1.1.1-chakra.0.0.4")
    return _written(*(partial(how, schema) for how in (alone, joined) for schema in schemas))


@cache
def _viewer() -> list[Files]:
    return _written(test_trace_viewer.two_gpus)


@cache
def _xla() -> list[Files]:
    whole = test_xla.trace()
    half = {**whole, "ranks": {"rank0": whole["ranks"]["rank0"][:1], "rank1": whole["ranks"]["rank1"][:1]}}
    return [{"trace.json": json.dumps(one).encode()} for one in (whole, half)]


@cache
def _pipeline_log() -> list[Files]:
    stages = (test_pipeline_log.TWO_STAGES, test_pipeline_log.FOUR_STAGES)
    return _written(
        lambda folder: test_pipeline_log.write(folder, stages[0]),
        lambda folder: test_pipeline_log.write(folder, stages[1], num_mbs=1),
    )


@cache
def _worker_log() -> bytes:
    (files,) = _written(
        lambda folder: test_stragglers.write(folder / "log.csv", test_stragglers.two_by_two())
    )
    return files["log.csv"]


def _worker_case(rng: Random) -> Case:
    damage = some_lines if rng.random() < 0.8 else some_bytes
    return Case("worker_log", {"log.csv": damage(_worker_log(), rng)}, _words(rng))


@cache
def _databases() -> list[Any]:
    pid = nsys_files.PID
    ranges = [
        {"start": 0, "end": 50_000, "eventType": 59, "text": None, "textId": 3, "globalTid": pid + 1},
        {"start": 60_000, "end": 99_000, "eventType": 59, "text": "step 4", "globalTid": pid + 1},
    ]
    kernel = test_nsys.KERNEL
    alone = [{"start": 10_000, "end": 60_000, "streamId": 7}, {"start": 70_000, "end": 90_000, "streamId": 7}]
    copies = [
        {"start": 61_000, "end": 69_000, "deviceId": 0, "streamId": 7, "correlationId": 9, "globalPid": pid,
         "bytes": 4096, "copyKind": 1},
    ]  # fmt: skip
    return [
        test_nsys.two_kernels(NVTX_EVENTS=ranges),
        test_nsys.two_kernels(CUPTI_ACTIVITY_KIND_MEMCPY=copies),
        {kernel: alone},
    ]


#: One a line, continued on lines that stand deeper.
_STATEMENTS = """
    ALTER TABLE {0} RENAME TO was; CREATE VIEW {0} AS SELECT * FROM was
    DROP TABLE {0}; CREATE VIEW {0} AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)
        SELECT x AS start, x AS end, 7 AS streamId FROM c
    DROP TABLE {0}; CREATE VIEW {0} AS SELECT zeroblob(1000000000) AS start, 1 AS end, 7 AS streamId
    UPDATE {0} SET {1} = 'text'
    UPDATE {0} SET {1} = NULL
    UPDATE {0} SET {1} = x'00ff'
    UPDATE {0} SET {1} = 1e300
    UPDATE {0} SET {1} = -{1}
    UPDATE {0} SET {1} = 9223372036854775807
    ALTER TABLE {0} RENAME COLUMN {1} TO other
    DELETE FROM {0}
    DROP TABLE {0}
    INSERT INTO {0} SELECT * FROM {0}
    CREATE INDEX i ON {0}({1})
    CREATE TRIGGER t AFTER INSERT ON {0} BEGIN DELETE FROM {0}; END
    ALTER TABLE {0} ADD COLUMN deviceId
"""
_STATEMENT = re.compile(r"^    (\S.*(?:\n        .*)*)", re.M)


def _nsys_case(rng: Random) -> Case:
    tables = pick(_databases(), rng)
    if rng.random() < 0.5:
        tables = Mutated(tables, rng).value
    data = _database(tables, rng)
    if rng.random() < 0.25:
        data = some_bytes(data, rng)
    return Case("nsys", {"t.sqlite": data}, _words(rng))


def _database(tables: Any, rng: Random) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        for table, rows in tables.items() if isinstance(tables, dict) else ():
            columns = (
                list(dict.fromkeys(k for row in rows if isinstance(row, dict) for k in row))
                if isinstance(rows, list)
                else []
            )
            with suppress(sqlite3.Error, ValueError, UnicodeError):
                connection.execute(f"CREATE TABLE {table} ({', '.join(columns) or 'start'})")
            for row in rows if columns else ():
                with suppress(sqlite3.Error, OverflowError, UnicodeError, AttributeError):
                    values = [_storable(row.get(name)) for name in columns]
                    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        if names and rng.random() < 0.4:
            table = rng.choice(names)
            column = rng.choice([row[1] for row in connection.execute(f"PRAGMA table_info({table})")])
            with suppress(sqlite3.Error):
                connection.executescript(rng.choice(_STATEMENT.findall(_STATEMENTS)).format(table, column))
        connection.commit()
        return connection.serialize() if names else b""


def _storable(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else json.dumps(value)


@cache
def _nodes() -> list[list[ChakraNode]]:
    return [test_chakra.timed_nodes()]


@cache
def _exported() -> list[Files]:
    return _written(lambda folder: export_chakra(test_chakra.hand_built(), folder))


def _chakra_case(rng: Random) -> Case:
    if rng.random() < 0.5:
        files = {"job.0.et": _stream(_nodes()[0], rng)}
        if rng.random() < 0.5:
            groups, _ = document({"0": [0, 1]}, as_json, rng)
            files |= {"job.1.et": _stream(_nodes()[0], rng), "comm_group.json": groups}
    else:
        files = dict(pick(_exported(), rng))
        if rng.random() < 0.9:
            del files["manifest.json"]  # which would have any change refused
        which = rng.choice(sorted(files))
        files[which] = (
            _messages_changed(files[which], rng) if which.endswith(".et") else some_bytes(files[which], rng)
        )
    return Case("chakra", files, _words(rng))


def _stream(nodes: list[ChakraNode], rng: Random) -> bytes:
    """A Chakra file of nodes with changed fields; as they were if these cannot be written."""
    plain = [{name: getattr(node, name) for name in ChakraNode.__slots__} for node in nodes]
    listed = json.loads(json.dumps(plain))
    changed = Mutated(listed, rng).value if rng.random() < 0.7 else listed
    held = io.BytesIO()
    try:
        write_nodes(held, (ChakraNode(**node) for node in changed))
    except Exception:
        held = io.BytesIO()
        write_nodes(held, iter(nodes))
        return _messages_changed(held.getvalue(), rng)
    return held.getvalue() if rng.random() < 0.7 else _messages_changed(held.getvalue(), rng)


def _messages_changed(data: bytes, rng: Random) -> bytes:
    """Bytes inside a message changed, its length put right; or messages lost, doubled or swapped."""
    if rng.random() < 0.2:
        return some_bytes(data, rng)
    messages, at = [], 0
    while at < len(data):
        length, shift = 0, 0
        while True:
            length |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                break
        messages.append(data[at : at + length])
        at += length
    which, other = rng.randrange(len(messages)), rng.randrange(len(messages))
    what = rng.randrange(6)
    if what == 0:
        del messages[which]
    elif what == 1:
        messages.insert(other, messages[which])
    elif what == 2:
        messages[which], messages[other] = messages[other], messages[which]
    else:
        messages[which] = some_bytes(messages[which], rng)
    found = bytearray()
    for message in messages:
        length = len(message)
        while length > 127:
            found.append(length & 127 | 128)
            length >>= 7
        found.append(length)
        found += message
    return bytes(found)


register([
    Format("kineto", partial(_json_case, "kineto", kineto), _files_door),
    Format("execution", partial(_json_case, "execution", _execution), _files_door),
    Format("trace_viewer", partial(_json_case, "trace_viewer", _viewer), _files_door),
    Format("xla", partial(_json_case, "xla", _xla), _files_door),
    Format("pipeline_log", partial(_json_case, "pipeline_log", _pipeline_log), _folder_door),
    Format("worker_log", _worker_case, _files_door),
    Format("nsys", _nsys_case, _files_door),
    Format("chakra", _chakra_case, _folder_door),
])  # fmt: skip
