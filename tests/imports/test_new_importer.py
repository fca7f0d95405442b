"""A format of one's own: rows of ops in a CSV become a job, once their importer is registered."""

import csv
import io

import pytest

from simcore.apps.replay.play import play
from simcore.errors import InputError
from simcore.graph import ProcessGroup
from workloads.imports import ImportedJob, Importer, ImportReport, formats, import_traces, register
from workloads.imports.files import opened, read_each
from workloads.imports.job import RankReport
from workloads.imports.timed_ops import RecordedCall, TimedOp, build_timed_graph, imported_rank

HEADER = b"rank,stream,name,start_us,end_us\n"


def read_ops(source):
    """The ops of each rank, in the order of the file; an all_reduce meets those of the other ranks."""
    ranks: dict[int, list[TimedOp]] = {}
    with opened(source) as (handle, _):
        rows = list(csv.DictReader(io.StringIO(handle.read().decode())))
    for number, row in enumerate(rows, start=1):
        start, end = (round(float(row[key]) * 1e6) for key in ("start_us", "end_us"))
        if end < start:
            raise InputError(f"{source.label}: row {number} ends before it starts")
        meets = RecordedCall("all", transfer_ps=0, collective="all_reduce")
        communicates = row["name"] == "all_reduce"
        ranks.setdefault(int(row["rank"]), []).append(
            TimedOp(
                row["name"], row["stream"], start, end, step=0, is_comm=communicates,
                call=meets if communicates else None,
            )
        )  # fmt: skip
    return ranks


def import_csv(sources, skip_bad, gaps):
    found, skipped = read_each(sources, read_ops, skip_bad=skip_bad)
    ranks = {number: ops for ranks in found for number, ops in ranks.items()}
    group = ProcessGroup("all", ((len(ranks), 1),), explicit=(tuple(range(len(ranks))),))
    graph, placed = build_timed_graph("csv", list(ranks), list(ranks.values()), [group])
    imported = tuple(map(imported_rank, ranks, ranks.values(), placed))
    reports = tuple(RankReport(number, sources[0].label, gpu_ops=len(ops)) for number, ops in ranks.items())
    report = ImportReport(reports, len(ranks), skipped=tuple(skipped), format="ops_csv")
    return ImportedJob(graph, imported, report)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(formats, "FORMATS", dict(formats.FORMATS))
    register(Importer("ops_csv", "rows of ops (CSV)", lambda _, head: head.startswith(HEADER), import_csv))


@pytest.mark.usefixtures("registered")
def test_rows_of_ops_are_replayed(tmp_path):
    # Rank 1 computes 40 us longer; rank 0 waits for it in an all_reduce that takes no time of its own.
    rows = "0,7,gemm,0,60\n0,7,all_reduce,60,100\n1,7,gemm,0,100\n1,7,all_reduce,100,100\n"
    path = tmp_path / "ops.csv"
    path.write_bytes(HEADER + rows.encode())
    job = import_traces([path])
    assert job.report.format == "ops_csv"
    assert [row.replayed.span for row in play(job).steps()] == [100e-6, 100e-6]


@pytest.mark.usefixtures("registered")
def test_a_bad_row_is_refused_by_its_number(tmp_path):
    path = tmp_path / "ops.csv"
    path.write_bytes(HEADER + b"0,7,gemm,60,0\n")
    with pytest.raises(InputError, match=r"ops\.csv: row 1 ends before it starts"):
        import_traces([path])


def test_unregistered_files_are_refused(tmp_path):
    path = tmp_path / "ops.csv"
    path.write_bytes(HEADER + b"0,7,gemm,0,60\n")
    with pytest.raises(InputError, match="no known trace"):
        import_traces([path])
