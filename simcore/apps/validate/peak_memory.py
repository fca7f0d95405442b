"""``validate.py --memory``: memory that published runs report, against the closed form.

torchtitan's tables give what the caching allocator held; other sources what the whole GPU did, context and
communicators included (inferred: chronicles quote the driver's figure).
"""

from __future__ import annotations

from typing import Any

from simcore.apps.measured.tables import ErrorTable, error_table, summary_lines
from simcore.errors import InputError
from simcore.units import GIB
from workloads.jobs.published import Case, RunRow, describe, read_run_rows
from workloads.parallel.check import check_job
from workloads.parallel.generate import schedule_of
from workloads.parallel.job import Job
from workloads.parallel.memory import MemoryEstimate, estimate_memory, outside_bytes

#: Microbatches after which no schedule holds more.
_ENOUGH_MICROBATCHES = 64


def memory_errors(path: str) -> ErrorTable:
    """Errors of every row of ``path`` with a value in its column ``mem_gib``; measured and predicted in GiB.

    A row with unpublished inputs is scored by its distance to the band of predictions (``low``, ``high``).
    Errors: InputError for a bad file, or one without such rows.
    """
    rows, skipped = [], []
    for row in read_run_rows(path):
        if not row.text("mem_gib"):
            continue
        try:
            rows.append(_predicted(row))
        except InputError as error:
            skipped.append({"id": row.id, "reason": str(error)})
    if not rows and not skipped:
        raise InputError(f"{path}: no row has a value in column mem_gib")
    return error_table(rows, skipped)


def _predicted(row: RunRow) -> dict[str, Any]:
    measured = row.number("mem_gib")
    if measured <= 0:
        raise InputError(f"mem_gib = {row.text('mem_gib')!r} is no positive number")
    band = describe(row)
    whole_gpu = not band.preset.startswith("torchtitan")
    found = sorted((_gib(case, whole_gpu), _parts(fullest(case))) for case in band.cases)
    values = [value for value, _ in found]
    nearest_one = min(found, key=lambda entry: abs(entry[0] - measured))
    return {
        "id": row.id,
        "family": row.family,
        "measured": measured,
        "predicted": min(max(measured, values[0]), values[-1]) if len(values) > 1 else values[0],
        "low": values[0],
        "high": values[-1],
        "parts_gib": dict(nearest_one[1]),
    }


def fullest(case: Case) -> MemoryEstimate:
    """The estimate of the stage that holds most.  InputError for degrees that cannot be."""
    check_job(case.model, case.parallel, case.training)
    job = Job(case.model, case.parallel, case.training, case.software)
    count = max(1, min(case.microbatches, _ENOUGH_MICROBATCHES))
    if case.parallel.virtual_stages > 1:  # whole groups of microbatches
        group = case.parallel.microbatch_group or case.parallel.pp
        count = max(1, count // group) * group
    schedule, _ = schedule_of(case.parallel, count)
    estimates = (estimate_memory(job, stage, actions) for stage, actions in enumerate(schedule))
    return max(estimates, key=lambda estimate: estimate.total)


def _gib(case: Case, whole_gpu: bool) -> float:
    job = Job(case.model, case.parallel, case.training, case.software)
    return (fullest(case).total + (outside_bytes(job) if whole_gpu else 0)) / GIB


def _parts(estimate: MemoryEstimate) -> tuple[tuple[str, float], ...]:
    return tuple((name, value / GIB) for name, value in vars(estimate).items())


def memory_lines(table: ErrorTable, worst: int) -> list[str]:
    """Errors by family, and the worst rows with the parts of their estimate, for a terminal."""
    lines = summary_lines(table, 24, 5)
    lines.append(f"refused: {len(table.skipped)} rows")
    lines.extend(f"  {row['id']}: {row['reason']}" for row in table.skipped)
    for row in sorted(table.rows, key=lambda row: -abs(row["error"]))[:worst]:
        parts = ", ".join(f"{name} {value:.1f}" for name, value in row["parts_gib"].items() if value)
        lines.append(
            f"{row['id']:28} measured {row['measured']:6.1f} GiB, predicted {row['predicted']:6.1f}"
            f" ({100 * row['error']:+.0f}%): {parts}"
        )
    return lines
