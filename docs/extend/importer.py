"""An importer: rows of ops in a CSV, with times in microseconds, become a job that can be replayed."""

from simcore.errors import InputError
from simcore.graph import ProcessGroup
from simcore.outside import csv_rows
from workloads.imports import ImportedJob, Importer, ImportReport, register
from workloads.imports.files import read_each, read_whole
from workloads.imports.job import RankReport
from workloads.imports.timed_ops import RecordedCall, TimedOp, build_timed_graph, imported_rank

COLUMNS = ("rank", "stream", "name", "start_us", "end_us")


def read_ops(source):
    """The ops of each rank, in the order of the file; an all_reduce meets those of the other ranks."""
    ranks: dict[int, list[TimedOp]] = {}
    for line, row in csv_rows(read_whole(source), "ops", COLUMNS, where=source.label):
        start, end = (round(float(row[key]) * 1e6) for key in ("start_us", "end_us"))
        if end < start:
            raise InputError(f"{source.label}: line {line}: ends before it starts")
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
    """A job of all files; gaps are as recorded, whatever ``gaps`` asks for."""
    del gaps
    found, skipped = read_each(sources, read_ops, skip_bad=skip_bad)
    ranks = {number: ops for ranks in found for number, ops in ranks.items()}
    group = ProcessGroup("all", ((len(ranks), 1),), explicit=(tuple(range(len(ranks))),))
    graph, placed = build_timed_graph("csv", list(ranks), list(ranks.values()), [group])
    imported = tuple(map(imported_rank, ranks, ranks.values(), placed))
    reports = tuple(RankReport(number, sources[0].label, gpu_ops=len(ops)) for number, ops in ranks.items())
    report = ImportReport(reports, len(ranks), skipped=tuple(skipped), format="ops_csv")
    return ImportedJob(graph, imported, report)


register(
    Importer(
        "ops_csv",
        "rows of ops (CSV)",
        lambda _, head: head.startswith(",".join(COLUMNS).encode()),
        import_csv,
    )
)
