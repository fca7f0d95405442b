"""The timeline's tables as Parquet: what the engine writes and the only thing that analysis reads.

A run folder holds the tables below (that of memory where storages are known) and ``run.json``
(:class:`simcore.timeline.info.RunInfo`).
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = "1"

TIMELINE_FILE = "timeline.parquet"
COUNTERS_FILE = "counters.parquet"
RANK_CLASSES_FILE = "rank_classes.parquet"
MEMORY_FILE = "memory.parquet"
RUN_FILE = "run.json"
RUN = "run"  # what the manifest of the folder says that it holds

_text = pa.dictionary(pa.int32(), pa.string())

#: One row per executed op.  ``start-ready`` is queueing, ``(end-start)-alone`` is contention.
#: ``stream`` is "host" for host ops and synchronisations: they wait for a stream and are not on it.
#: ``peer`` is the global rank at the other end of a send or recv (-1 otherwise); ``bytes`` is HBM traffic
#: (read + written) of a compute op and nccl-tests' size of a communication; ``layer`` is global.
#: Nothing is ever missing, which the file says: a writer that need not ask takes a sixth less.
TIMELINE = pa.schema(
    [
        pa.field(name, of, nullable=False)
        for name, of in (
            ("rank_class", pa.int32()),
            ("rank", pa.int32()),
            ("stream", _text),
            ("op_id", pa.int32()),
            ("name", _text),
            ("kind", _text),
            ("phase", _text),
            ("step", pa.int32()),
            ("stage", pa.int32()),
            ("microbatch", pa.int32()),
            ("layer", pa.int32()),
            ("group", _text),
            ("peer", pa.int32()),
            ("algorithm", _text),
            ("protocol", _text),
            ("channels", pa.int32()),
            ("flops", pa.int64()),
            ("bytes", pa.int64()),
            ("ready_ps", pa.int64()),
            ("start_ps", pa.int64()),
            ("end_ps", pa.int64()),
            ("alone_ps", pa.int64()),
        )
    ],
    metadata={"simcore.timeline.schema": SCHEMA_VERSION},
)

#: A step function per resource: ``value`` holds from ``time_ps`` until the resource's next row.
#: Rows of a resource are together.
COUNTERS = pa.schema(
    [("time_ps", pa.int64()), ("resource", _text), ("value", pa.float64())],
    metadata={"simcore.counters.schema": SCHEMA_VERSION},
)

#: What one GPU of a stage holds, by category: ``bytes`` holds from ``time_ps`` on.
MEMORY = pa.schema(
    [("stage", pa.int32()), ("time_ps", pa.int64()), ("category", _text), ("bytes", pa.int64())],
    metadata={"simcore.memory.schema": SCHEMA_VERSION},
)

#: Which class each rank belongs to, and which rank's rows stand for the class.
RANK_CLASSES = pa.schema(
    [("rank", pa.int32()), ("rank_class", pa.int32()), ("representative", pa.int32())],
    metadata={"simcore.rank_classes.schema": SCHEMA_VERSION},
)
