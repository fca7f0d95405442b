"""Jobs that were predicted before anybody here saw them measured, and what today's code says of them.

A table has a job a line, as ``run_sim.py`` is asked for it (:data:`ASKED`), and what it answered when the
table was frozen (:data:`ANSWERED`).  Freezing fills in what is empty; asking again says what has moved since.
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from simcore.apps.child import ask_run_sim
from simcore.apps.options import Json
from simcore.apps.progress import say
from simcore.errors import InputError
from simcore.files import whole_text
from simcore.outside import csv_rows

#: ``set``: settings between blanks.
ASKED: Final = ("job", "workload", "cluster", "set")
#: Seconds of a step and of its 80% band; tokens per second of all GPUs; model flop/s of one, causal attention
#: counted once; why there is no answer.
ANSWERED: Final = ("step_s", "low_s", "high_s", "tokens_per_s", "tflops_per_gpu", "refused")
#: Of a table of answers beside the frozen ones; ``moved``: relative change of the step time.
BESIDE: Final = ("job", "frozen_s", "today_s", "moved", "low_s", "high_s", "refused")
#: Relative change of a step time from which a prediction has moved.
_MOVED: Final = 1e-3


def forecast(
    table: Annotated[Path, typer.Argument(metavar="CSV", help="Jobs and what was frozen.")] = Path(
        "docs/forecast.csv"
    ),
    write: Annotated[bool, typer.Option("--write", help="Freeze: fill in jobs without an answer.")] = False,
    only: Annotated[str, typer.Option("--only", metavar="WORD", help="Jobs with this in the name.")] = "",
    beside: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Write today's answers beside the frozen ones.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predictions that were frozen before they were scored, asked again."""
    if beside is not None and beside.resolve() == table.resolve():
        raise InputError(f"--beside: {table} holds what was frozen; name another file")
    rows = [dict(row) for _, row in csv_rows(table, "forecast", ASKED)]
    chosen = [row for row in rows if only in row["job"] and not (write and _frozen(row))]
    if not chosen and not write:
        raise InputError(f"{table}: no job with {only!r} in its name" if only else f"{table}: no job")
    asked = []
    for row, today in _asked(chosen):
        asked.append({"job": row["job"], "frozen": _answers(row), "today": today})
        if write:
            row |= today
            _save(table, rows, (*ASKED, *ANSWERED))
    if beside is not None:
        _save(beside, [_beside(one) for one in asked], BESIDE)
    if as_json:
        print(json.dumps({"jobs": asked}))
    elif not write:
        print(_moved(asked))


def _frozen(row: Mapping[str, str]) -> bool:
    return bool(row.get("step_s") or row.get("refused"))


def _answers(row: Mapping[str, str]) -> dict[str, str]:
    return {key: row.get(key, "") for key in ANSWERED}


def _asked(rows: list[dict[str, str]]) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Each row with what ``run_sim`` answers now."""
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(rows, 1):
            say(f"{number}/{len(rows)} {row['job']} ...")
            words = [row["workload"], "--no-perfetto", "--force", "--out", f"{folder}/run"]
            words += ["--cluster", row["cluster"]] if row["cluster"] else []
            for setting in row["set"].split():
                words += ["--set", setting]
            try:
                yield row, _answer(ask_run_sim(words))
            except InputError as error:
                yield row, {**dict.fromkeys(ANSWERED, ""), "refused": " ".join(str(error).split())[:200]}


def _answer(found: Mapping[str, Any]) -> dict[str, str]:
    band = found["band"] or {}
    numbers = (
        found["step_time_s"], band.get("low_s"), band.get("high_s"), found["tokens_per_s"],
        found["model_tflops_per_gpu"],
    )  # fmt: skip
    texts = ["" if number is None else f"{number:.5g}" for number in numbers]
    return dict(zip(ANSWERED, [*texts, ""], strict=True))


def _beside(one: Mapping[str, Any]) -> dict[str, str]:
    frozen, today = one["frozen"], one["today"]
    both = frozen["step_s"] and today["step_s"]
    return {
        "job": one["job"], "frozen_s": frozen["step_s"], "today_s": today["step_s"],
        "moved": f"{float(today['step_s']) / float(frozen['step_s']) - 1:+.4f}" if both else "",
        "low_s": today["low_s"], "high_s": today["high_s"], "refused": today["refused"],
    }  # fmt: skip


def _save(table: Path, rows: list[dict[str, str]], columns: Sequence[str]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    whole_text(table, text.getvalue())


def _moved(asked: list[dict[str, Any]]) -> str:
    lines = []
    for one in asked:
        frozen, today = (one[when]["step_s"] for when in ("frozen", "today"))
        if frozen and today and abs(float(today) / float(frozen) - 1) > _MOVED:
            share = float(today) / float(frozen) - 1
            lines.append(f"{one['job']}: frozen {frozen} s, today {today} s ({share:+.1%})")
        elif bool(frozen) != bool(today):
            why = one["today"]["refused"] or "an answer"
            lines.append(f"{one['job']}: frozen {frozen or 'without an answer'}, today {why}")
    return "\n".join([*lines, f"{len(lines)} of {len(asked)} predictions have moved since they were frozen"])
