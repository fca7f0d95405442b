"""What a sweep asks: a job's file, and what of it takes which values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any, Final

from simcore.apps.run.scenario import Scenario, resolve_scenario
from simcore.apps.run.scenario_file import SECTIONS
from simcore.apps.run.settings import KEYS
from simcore.errors import InputError, nearest
from simcore.outside import inside, quoted, read_text, yaml_document
from simcore.records import dataclass
from workloads.jobs import meant, sections_of

#: Keys of a sweep beside those of a job's file.
_GRID: Final = "grid"
_CASES: Final = "cases"
_PRICES: Final = "prices"
#: Keys of a job's file that may vary, beside ``--set`` keys.
_WHOLE: Final = ("workload", "cluster", "network", "seed")
#: Keys whose value names a part of a description, or a file with it: where the file says so.
_NAMED: Final = {
    "model": ("model", "model"),
    "software": ("software", "preset"),
    "software.preset": ("software", "preset"),
}
#: Keys of single ranks, nodes and links begin so.
_NUMBERED: Final = ("rank", "node", "link")
_MOST_CASES: Final = 1_000_000

Value = str | int | float | bool
Said = Mapping[str, Value]


@dataclass(frozen=True)
class SweepSpec:
    """``job``: content of the job's file at ``path``; its ``grid`` (values by key) and ``listed`` cases."""

    path: Path
    job: Mapping[str, Any]
    grid: Mapping[str, Sequence[Value]]
    listed: Sequence[Said]

    @property
    def keys(self) -> list[str]:
        """What varies, in the order in which it was said."""
        return list(dict.fromkeys([*self.grid, *(key for one in self.listed for key in one)]))

    def __len__(self) -> int:
        """How many cases there are."""
        return math.prod(map(len, self.grid.values())) * len(self.listed)

    def cases(self) -> Iterator[Said]:
        """Every listed case beside every combination of the grid, the last key of the grid changing first."""
        for one in self.listed:
            for values in product(*self.grid.values()):
                yield {**dict(zip(self.grid, values, strict=True)), **one}

    def scenario(self, case: Said) -> Scenario:
        """A case as ``run_sim.py`` would be asked.  Errors: InputError as for that."""
        content: dict[str, Any] = {
            key: value for key, value in self.job.items() if key not in ("set", _PRICES)
        }
        settings = dict(self.job.get("set") or {})
        for key, value in case.items():
            if key == _PRICES:
                continue  # they change no simulation
            if key in _WHOLE:
                content[key] = value
            elif key in _NAMED:  # said in the file: what it names lies beside it
                section, name = _NAMED[key]
                said = content.get(section) or {}
                content[section] = {**(said if isinstance(said, dict) else {}), name: value}
            else:
                settings[key] = str(value).lower() if isinstance(value, bool) else value
        return resolve_scenario(str(self.path), settings={}, content={**content, "set": settings})

    @property
    def names_prices(self) -> bool:
        """Whether it says itself what GPUs cost."""
        return _PRICES in self.job or _PRICES in self.keys

    def prices(self, case: Said) -> str | None:
        """The prices of a case, those of a file as its path; None where it has none.

        InputError for a file that does not lie beside the spec.
        """
        name = case.get(_PRICES, self.job.get(_PRICES))
        if name is None:
            return None
        is_file = Path(str(name)).suffix != "" or len(Path(str(name)).parts) > 1
        return str(inside(self.path.parent, str(name), f"{self.path}: {_PRICES}")) if is_file else str(name)


def sweep_spec(path: Path) -> SweepSpec:
    """The sweep that the YAML file at ``path`` describes.

    Its keys are those of a job's file (workload or model, parallel, training, software; cluster, network,
    seed, set) and prices, with ``grid``, ``cases`` or both.
    Errors: InputError for anything that cannot be, with the nearest known name.
    """
    where = str(path)
    content = yaml_document(read_text(path, "sweep"), where)
    if not isinstance(content, dict):
        raise InputError(
            f"{where}: expected a job's keys with {_GRID} or {_CASES}, got {type(content).__name__}"
        )
    job = {key: value for key, value in content.items() if key not in (_GRID, _CASES)}
    for key in job:
        if key not in (*SECTIONS, *_WHOLE, "set", _PRICES):
            known = (*SECTIONS, *_WHOLE, "set", _PRICES, _GRID, _CASES)
            raise InputError(f"{where}: unknown key {quoted(key)}{nearest(str(key), known)}")
    if len(job) == len(content):
        raise InputError(f"{where}: nothing varies: it has neither {_GRID} nor {_CASES}")
    if not isinstance(job.get("set") or {}, dict):
        raise InputError(f"{where}: set must map keys to values, such as gpu.clock: 0.9")
    said = job.get("workload")
    if isinstance(said, str) and Path(said).suffix.lower() in (".yaml", ".yml"):
        raise InputError(f"{where}: workload: {said}: what that file says goes into this one, beside {_GRID}")
    spec = SweepSpec(path, job, _grid(content.get(_GRID), where), _listed(content.get(_CASES), where))
    both = set(spec.grid) & {key for one in spec.listed for key in one}
    if both:
        raise InputError(f"{where}: {sorted(both)[0]} is in {_GRID} and in {_CASES}")
    for key in spec.keys:
        _check_key(key, spec, where)
    if len(spec) > _MOST_CASES:
        raise InputError(f"{where}: {len(spec):,} cases; at most {_MOST_CASES:,} at a time")
    return spec


def _grid(content: Any, where: str) -> dict[str, list[Value]]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{where}: {_GRID} must map keys to lists of values, such as parallel.tp: [1, 2, 4]")
    found = {}
    for key, values in content.items():
        every = values if isinstance(values, list) else [values]
        if not every:
            raise InputError(f"{where}: {_GRID}: {quoted(key)} has no values")
        found[str(key)] = [_value(value, f"{where}: {_GRID}: {key}") for value in every]
    return found


def _listed(content: Any, where: str) -> list[Said]:
    if content is None:
        return [{}]
    if not isinstance(content, list) or not content:
        raise InputError(f"{where}: {_CASES} must be a list of settings, such as - {{parallel.tp: 2}}")
    found: list[Said] = []
    for number, one in enumerate(content, start=1):
        if not isinstance(one, dict):
            raise InputError(f"{where}: {_CASES}: number {number} must map keys to values, not {quoted(one)}")
        found.append({str(key): _value(value, f"{where}: {_CASES}: {key}") for key, value in one.items()})
    return found


def _value(value: Any, where: str) -> Value:
    if not isinstance(value, str | int | float) or not str(value).strip():
        raise InputError(f"{where}: expected a text or a number, not {quoted(value)}")
    return value


def _check_key(key: str, spec: SweepSpec, where: str) -> None:
    """InputError for a key that nothing has, or that the job's own workload contradicts."""
    section, _, name = key.partition(".")
    if key == "workload" and any(part in spec.job for part in SECTIONS):
        raise InputError(f"{where}: either workload, or a description ({', '.join(SECTIONS)})")
    if key == "model" and "workload" in {*spec.job, *spec.keys}:
        raise InputError(
            f"{where}: workload names the model: say which of them with workload, not with model"
        )
    first = name.partition(".")[0]
    if key in (*_WHOLE, _PRICES, *_NAMED, *KEYS) or (section in SECTIONS and section in sections_of(first)):
        return
    if section in _NUMBERED and name:
        return  # their numbers are checked where the machine is known
    exact = meant(name or key)
    if exact:
        raise InputError(f"{where}: unknown key {quoted(key)}; did you mean {exact!r}?")
    known = (*KEYS, *_WHOLE, _PRICES, *_fields(section))
    raise InputError(f"{where}: unknown key {quoted(key)}{nearest(key, known)}")


def _fields(section: str) -> list[str]:
    """Keys of a section of a description, of the nearest where there is none of that name."""
    from workloads.models.software import SoftwareSpec
    from workloads.models.spec import ModelSpec
    from workloads.parallel.spec import ParallelSpec, TrainingSpec

    close = get_close_matches(section, SECTIONS, n=1, cutoff=0.7)
    specs = dict(zip(SECTIONS, (ModelSpec, ParallelSpec, TrainingSpec, SoftwareSpec), strict=True))
    return [f"{one}.{name}" for one in close for name in specs[one].model_fields]
