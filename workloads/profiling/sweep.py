"""The whole measurement: resumable, within a time budget, with progress and time left on stderr."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simcore.cost.kernel import parse_shapes
from simcore.errors import InputError
from simcore.files import append_line, whole_text
from simcore.outside import csv_rows, read_text
from workloads.profiling.cases import COPY_BLOCKS, KernelCase, kernel_cases, overlap_cases

KERNEL_COLUMNS = ("op", "op_class", "dtype", "in_shapes", "out_shapes", "bytes", "flops", "time_us")
OVERLAP_COLUMNS = (
    "op", "op_class", "dtype", "in_shapes", "out_shapes", "bytes", "copy_blocks", "alone_us", "beside_us",
    "copy_bytes_per_s",
)  # fmt: skip
#: What every GPU can do: an error in one of these is one of the measurement.
_EVERYWHERE = ("mm", "add", "copy", "sum", "fill")


def measure_gpu(folder: Path, minutes: float) -> bool:
    """Measure what ``folder`` does not hold yet, for at most ``minutes``; True when everything is there.

    Rows are written as they are measured, so that a run that was stopped goes on where it was.
    Errors: InputError where torch or a CUDA device is missing, or the folder is of another GPU.
    """
    torch = _torch()
    from workloads.profiling import measure
    from workloads.profiling.copy_kernel import compile_copy_kernel

    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 rows are fp32
    folder.mkdir(parents=True, exist_ok=True)
    facts = measure.device_facts()
    _check_device(folder / "device.json", facts)
    deadline = time.monotonic() + 60 * minutes
    kernels = Results(folder / "kernels.csv", KERNEL_COLUMNS)
    overlaps = Results(folder / "overlap.csv", OVERLAP_COLUMNS)
    if not (folder / "launch.json").exists():
        whole_text(folder / "launch.json", json.dumps(measure.launch_times(), indent=1) + "\n")

    def alone(case: KernelCase) -> float:
        return measure.time_alone_us(measure.capture(measure.prepare(case)))

    complete = _sweep(
        "kernels",
        kernel_cases(),
        deadline,
        kernels,
        lambda case: [{**columns_of(case), "time_us": alone(case)}],
    )
    launch = compile_copy_kernel(_say)
    if launch is None:
        return complete
    beside = measure.Overlap(launch)

    def overlapped(case: KernelCase) -> list[dict[str, Any]]:
        captured = measure.capture(measure.prepare(case))
        alone_us = measure.time_alone_us(captured)
        rows = []
        for blocks in COPY_BLOCKS:
            time_us, rate = beside.time_us(captured, alone_us, blocks)
            rows.append(
                {
                    **columns_of(case), "copy_blocks": blocks, "alone_us": alone_us, "beside_us": time_us,
                    "copy_bytes_per_s": rate,
                }
            )  # fmt: skip
        return rows

    return _sweep("overlaps", overlap_cases(), deadline, overlaps, overlapped) and complete


def device_folder() -> str:
    """A folder name from the GPU's name.  InputError where torch or a CUDA device is missing."""
    name: str = _torch().cuda.get_device_name(0)
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _torch() -> Any:
    """Torch, with a CUDA device."""
    try:
        import torch
    except ImportError:
        raise InputError("measuring needs torch with CUDA: pip install torch") from None
    if not torch.cuda.is_available():
        raise InputError("torch sees no CUDA device; an existing measurement is fitted with --fit-only")
    return torch


def _check_device(path: Path, facts: dict[str, Any]) -> None:
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
        if known.get("gpu") != facts["gpu"]:
            raise InputError(
                f"{path.parent} holds a measurement of {known.get('gpu')!r}, not {facts['gpu']!r}"
            )
        return
    stamped = {**facts, "measured": time.strftime("%Y-%m-%d")}
    whole_text(path, json.dumps(stamped, indent=1) + "\n")


def columns_of(case: KernelCase) -> dict[str, Any]:
    """What identifies a case in both tables."""
    return {
        "op": case.op, "op_class": case.op_class, "dtype": case.dtype,
        "in_shapes": json.dumps(case.in_shapes) if case.in_shapes else "",
        "out_shapes": json.dumps(case.out_shapes) if case.out_shapes else "",
        "bytes": case.num_bytes, "flops": case.flops,
    }  # fmt: skip


class Results:
    """A CSV of ``columns`` that grows; ``done`` are the keys of the cases that it held when opened."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._path, self._columns = path, columns
        self.done: set[str] = set()
        text = read_text(path, "measured kernels", "json") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # half a row of a run that was killed: its case is measured again
            whole_text(path, whole)
        if not whole:
            self._append(dict(zip(columns, columns, strict=True)))
        rows = csv_rows(whole.encode(), "measured kernels", columns, where=str(path)) if whole else ()
        for line, row in rows:
            try:
                shapes = [parse_shapes(row[name]) for name in ("in_shapes", "out_shapes")]
                self.done.add(json.dumps([row["op"], row["dtype"], *shapes, int(row["bytes"])]))
            except (InputError, ValueError) as error:
                raise InputError(f"{path}: line {line:,}: {error}") from None

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Append rows; entries that are no columns are left out."""
        for row in rows:
            self._append(row)

    def _append(self, row: dict[str, Any]) -> None:
        line = io.StringIO()
        csv.DictWriter(line, self._columns, extrasaction="ignore", lineterminator="").writerow(row)
        append_line(self._path, line.getvalue())


def _sweep(
    what: str,
    cases: list[KernelCase],
    deadline: float,
    results: Results,
    measure: Callable[[KernelCase], list[dict[str, Any]]],
) -> bool:
    """Measure the cases that are not done; False when time ran out.

    A case that the GPU or this torch cannot do (fp8 on an A100) is said and left out.
    """
    begin, left = time.monotonic(), [case for case in cases if case.key not in results.done]
    for number, case in enumerate(left):
        now = time.monotonic()
        if now > deadline:
            _say(f"{what}: time is up, {len(left) - number} left; run again to go on")
            return False
        rest = (now - begin) / number * (len(left) - number) if number else 0.0
        _say(f"{what}: {number + 1} of {len(left)}, about {rest:.0f} s left: {case.op} {case.dtype}")
        try:
            results.write(measure(case))
        except (RuntimeError, AttributeError) as error:
            lost = "CUDA error" in str(error)  # nothing that follows on this device can be measured
            if lost or ("out of memory" not in str(error) and case.op in _EVERYWHERE):
                raise
            _say(f"{what}: {case.op} {case.dtype} {case.in_shapes} is left out: {str(error).splitlines()[0]}")
    return True


def _say(text: str) -> None:
    print(text, file=sys.stderr)
