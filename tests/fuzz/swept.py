"""Formats of sweeps: what is asked, and the outcomes that are kept."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from simcore.apps.run.outcome import OUTCOMES, Outcome
from simcore.apps.sweep.costs import rates
from simcore.apps.sweep.files import SweepFolder, write_rows
from simcore.apps.sweep.spec import SweepSpec, sweep_spec
from simcore.apps.sweep.sweeping import asked, take
from simcore.apps.sweep.table import json_of, lines
from simcore.errors import InputError
from tests.fuzz import described
from tests.fuzz.cases import Answer, Case, Format, register
from tests.fuzz.described import JOB
from tests.fuzz.mutate import as_json, as_yaml, document, pick, some_bytes, some_lines

#: Cases that are looked at: a mutated grid may have a million.
_MOST = 100
_SPECS: list[Any] = [
    {**JOB, "cluster": "h100-8", "grid": {"parallel.tp": [1, 2], "training.recompute": ["none", "full"]}},
    {"model": {"layers": 1, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024}, "seed": 1,
     "set": {"gpu.clock": 0.9}, "training": {"seq": 64, "global_batch": 8},
     "cases": [{"cluster": "h100-8", "network": "alphabeta"}, {"cluster": "a100-8", "gpu.clock": 0.8}]},
    {**JOB, "grid": {"cluster": ["h100-8"], "training.tp_overlap": [True, False], "noise.sigma": [0.1]},
     "cases": [{"training.seq": 64}, {"software": "torchtitan-fsdp2"}]},
]  # fmt: skip


def _spec_case(rng: Random) -> Case:
    render = as_yaml if rng.random() < 0.7 else as_json
    text, unknown = document(pick(_SPECS, rng), render, rng)
    return Case("sweep", {"spec.yaml": text}, unknown=unknown)


def _spec_door(given: Path, case: Case) -> Answer:
    spec = sweep_spec(given / "spec.yaml")
    if len(spec) > _MOST:
        raise InputError(f"{len(spec)} cases")
    found = asked(spec)
    reasons = [one.reason for one in found.outcomes.values()]
    if any(one.status == "failed" for one in found.outcomes.values()):
        return Answer(wrong=f"{reasons}"[:80])
    able = next((one for one in found.cases if one.key), None)
    if able is None:
        raise InputError(reasons[0])
    priced = rates(spec, found, None)
    answer = described.asked(spec.scenario(able.said), case)
    return Answer(answer.seconds, [answer.said, reasons, json_of(found, priced, {}, 0.0)], answer.wrong)


@cache
def _kept() -> bytes:
    """A store of the first spec: two outcomes that are whole, a failed one and one of a plan."""
    job = {key: value for key, value in _SPECS[0].items() if key != "grid"}
    spec = SweepSpec(Path("spec.yaml"), job, _SPECS[0]["grid"], [{}])
    whole = Outcome(
        status="done", step_time_s=0.5, band_low_s=0.4, band_high_s=0.6, tokens_per_s=1e3, mfu=0.4,
        model_tflops_per_gpu=300.0, exposed_compute_s=0.2, overlapped_s=0.1, exposed_communication_s=0.1,
        idle_s=0.1, peak_memory_bytes=1 << 30, gpus=8, warnings=["a", "b"],
    )  # fmt: skip
    every = [whole, whole, Outcome(status="failed", reason="died"), Outcome(status="done", step_time_s=1.0)]
    rows = [
        {"key": case.key, "case": dict(case.said), **one.model_dump(exclude_none=True)}
        for case, one in zip(asked(spec).cases, every, strict=True)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _store_case(rng: Random) -> Case:
    damage = some_lines if rng.random() < 0.7 else some_bytes
    files = {"spec.yaml": as_yaml(_SPECS[0]).encode(), OUTCOMES: damage(_kept(), rng)}
    return Case("store", files)


def _store_door(given: Path, case: Case) -> Answer:
    """What is kept is taken or told of; the rows can be written."""
    spec = sweep_spec(given / "spec.yaml")
    folder = SweepFolder(Path("swept"))
    folder.path.mkdir()
    try:
        shutil.copy(given / OUTCOMES, folder.store_file)
        with redirect_stderr(io.StringIO()):
            store = folder.store()
        found = asked(spec)
        take(found, store)
        priced = rates(spec, found, "aws")
        write_rows(folder.rows, spec, found, priced)
        return Answer(None, [json_of(found, priced, {"rows": folder.rows}, 0.0), lines(found, priced)])
    finally:
        shutil.rmtree(folder.path)


register([Format("sweep", _spec_case, _spec_door), Format("store", _store_case, _store_door)])
