"""What a sweep leaves on disk: its outcomes as they come, and at the end a row for each case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from simcore.apps.run.outcome import OUTCOMES, outcomes
from simcore.apps.store import Store
from simcore.apps.sweep.costs import Rates
from simcore.apps.sweep.spec import SweepSpec, Value
from simcore.apps.sweep.sweeping import Swept
from simcore.errors import InputError
from simcore.files import folder_name, whole_file
from simcore.records import dataclass
from simcore.timeline.facts import software_versions

_ROWS: Final = "cases.parquet"
_PART: Final = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
#: Columns beside one for each key that varies, and their types.
_OF_OUTCOME: Final = (
    ("reason", pa.string()),  # of what is not done; "" where it is
    ("step_time_s", pa.float64()),
    ("band_low_s", pa.float64()),
    ("band_high_s", pa.float64()),
    ("tokens_per_s", pa.float64()),
    ("mfu", pa.float64()),
    ("model_tflops_per_gpu", pa.float64()),
    ("exposed_compute_s", pa.float64()),
    ("overlapped_s", pa.float64()),
    ("exposed_communication_s", pa.float64()),
    ("idle_s", pa.float64()),
    ("bubble", pa.float64()),
    ("peak_memory_bytes", pa.int64()),
    ("gpus", pa.int64()),
    ("warnings", pa.list_(pa.string())),
)
#: Where prices are named.
_OF_COST: Final = (
    ("currency", pa.string()), ("cost_per_step", pa.float64()), ("cost_per_million_tokens", pa.float64()),
)  # fmt: skip


def part_of(text: str) -> tuple[int, int]:
    """``"2/8"``: part 2 of 8.  InputError for what is no part."""
    match = _PART.fullmatch(text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"--shard {text!r}: expected I/N with I from 1 to N, such as 2/8")
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class SweepFolder:
    """``path`` with a part's own files in it: parts on several machines may share the folder."""

    path: Path
    part: tuple[int, int] = (1, 1)

    @property
    def rows(self) -> Path:
        """The table."""
        return self._own(_ROWS)

    @property
    def store_file(self) -> Path:
        """Where outcomes are noted."""
        return self._own(OUTCOMES)

    def store(self) -> Store:
        """Outcomes; of other parts and of the whole they are read, too.  InputError where it cannot be."""
        name = Path(OUTCOMES)
        others = sorted({*self.path.glob(f"{name.stem}*{name.suffix}")} - {self.store_file})
        return outcomes(self.store_file, others)

    def _own(self, name: str) -> Path:
        number, of = self.part
        plain = Path(name)
        return self.path / (name if of == 1 else f"{plain.stem}.{number}-of-{of}{plain.suffix}")


def sweep_folder(spec: Path, out: Path | None, part: tuple[int, int]) -> SweepFolder:
    """Where a sweep goes."""
    return SweepFolder(out or Path("sweeps") / folder_name(spec.stem), part)


def merge(store: Store, other: Path) -> int:
    """Take over the outcomes of a folder or a file.  InputError where there are none to read."""
    name = Path(OUTCOMES)
    found = sorted(other.glob(f"{name.stem}*{name.suffix}")) if other.is_dir() else [other]
    if not found:
        raise InputError(f"--merge {other}: no {name.stem}*{name.suffix} in it")
    return sum(store.merge(one) for one in found)


def write_rows(path: Path, spec: SweepSpec, found: Swept, priced: Rates) -> None:
    """One row for each case, in order, with costs if any is ``priced``.

    InputError when it cannot be written.
    """
    outcomes = [found.outcomes.get(case.number) for case in found.cases]
    columns: dict[str, pa.Array] = {"case": pa.array([case.number for case in found.cases], pa.int64())}
    for key in spec.keys:
        columns[key] = _settings([case.said.get(key) for case in found.cases])
    columns["status"] = pa.array([found.status(case) for case in found.cases], pa.string())
    for name, kind in _OF_OUTCOME:
        columns[name] = pa.array([getattr(one, name, None) for one in outcomes], kind)
    if priced:
        costs = [
            {} if rate is None or outcome is None else rate.as_object(outcome)
            for rate, outcome in zip((priced.get(case.number) for case in found.cases), outcomes, strict=True)
        ]
        for name, kind in _OF_COST:
            columns[name] = pa.array([cost.get(name) for cost in costs], kind)
    columns["key"] = pa.array([case.key for case in found.cases], pa.string())
    columns["version"] = pa.array([software_versions()["stepsim"]] * len(outcomes), pa.string())
    try:
        with whole_file(path) as fresh:
            pq.write_table(pa.table(columns), fresh, compression="zstd")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def _settings(values: Sequence[Value | None]) -> pa.Array:
    """Numbers stay numbers where all are."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values if isinstance(value, int)):
        return pa.array(values, pa.int64())
    if kinds and kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else str(value) for value in values], pa.string())
