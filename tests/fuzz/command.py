"""Long runs of fuzzing: rates by format, what failed kept and made small."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from simcore.errors import InputError, nearest
from tests.fuzz import (  # noqa: F401  they register their formats
    commands,
    described,
    launches,
    recordings,
    stored,
    swept,
)
from tests.fuzz.cases import CORPUS, FORMATS, Case, drawn, to_json
from tests.fuzz.machine import KINDS, Outcome, outcome_of, run_blocks
from tests.fuzz.shrink import shrunk

BLOCK = 500
_SHOWN = 4_000  # characters of a case


def fuzz(
    cases: Annotated[int, typer.Option(help="Cases in all, the same number of each format.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Another seed, other cases.")] = 0,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="Only this format; repeatable.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 2,
    out: Annotated[
        Path | None, typer.Option(help="Keep finished blocks there; the same run goes on from them.")
    ] = None,
    case: Annotated[int, typer.Option(help="Only this case of --format: show it and what comes of it.")] = -1,
    shrink: Annotated[bool, typer.Option("--shrink", help="Make what fails small, for the corpus.")] = False,
) -> None:
    """Show mutated inputs of every format to the simulator; exit code 1 if it fails at one."""
    for name in formats or ():
        if name not in FORMATS:
            raise InputError(f"--format: unknown format {name!r}{nearest(name, FORMATS)}")
    names = formats or list(FORMATS)
    if case >= 0:
        raise SystemExit(_one(names, seed, case, shrink=shrink))
    found = _run(names, seed, -(-cases // len(names)), jobs, out)
    for line in _table(found):
        print(line)
    failures = _failures(found)
    for signature, (number, total, said) in failures.items():
        name = signature.split()[0]
        print(f"\n{total} x {signature}\n  --format {name} --seed {seed} --case {number}\n  {said[:300]}")
        if shrink:
            print(f"  {_kept(drawn(name, seed, number))}")
    raise SystemExit(bool(failures))


def _one(names: list[str], seed: int, number: int, *, shrink: bool) -> int:
    if len(names) != 1:
        raise InputError("--case is the number of a case of one --format")
    what = drawn(names[0], seed, number)
    outcome = outcome_of(what)
    print(to_json(what)[:_SHOWN])
    print(f"{outcome.signature}\n{outcome.said}")
    if shrink and not outcome.good:
        print(_kept(what))
    return int(not outcome.good)


def _kept(case: Case) -> Path:
    """Write the case, made small, to the corpus."""
    outcome = outcome_of(case)
    if not outcome.good:
        case = shrunk(case, lambda smaller: outcome_of(smaller).signature == outcome.signature)
    text = to_json(case, outcome.signature)
    CORPUS.mkdir(exist_ok=True)
    number = sum(path.name.startswith(f"{case.format}-") for path in CORPUS.iterdir()) + 1
    while (path := CORPUS / f"{case.format}-{number}.json").exists():
        number += 1
    path.write_text(text, encoding="utf-8")
    return path


def _run(names: list[str], seed: int, each: int, jobs: int, out: Path | None) -> list[dict[str, Any]]:
    """Blocks of outcomes, those that ``out`` has included."""
    done: dict[tuple[Any, ...], dict[str, Any]] = {}
    if out is not None and out.exists():
        for line in out.read_text(encoding="utf-8").splitlines():
            block = json.loads(line)
            done[block["format"], block["seed"], block["start"], block["stop"]] = block
    every = [
        (name, seed, start, min(start + BLOCK, each)) for start in range(0, each, BLOCK) for name in names
    ]
    todo = [key for key in every if key not in done]
    began, total = time.monotonic(), sum(key[3] - key[2] for key in todo)
    finished = 0
    for number, outcomes in run_blocks((partial(_cases, *key) for key in todo), jobs):
        done[todo[number]] = block = _block(todo[number], outcomes)
        finished += len(outcomes)
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(block) + "\n")
        left_s = (time.monotonic() - began) * (total - finished) / finished
        bad = sum(len(one["failed"]) for one in done.values())
        print(
            f"\r{finished:,} of {total:,} cases, {bad} failed, {left_s / 60:.1f} min left ",
            end="",
            file=sys.stderr,
        )
    print(file=sys.stderr)
    return [done[key] for key in every]


def _cases(name: str, seed: int, start: int, stop: int) -> Iterator[Case]:
    return (drawn(name, seed, number) for number in range(start, stop))


def _block(key: tuple[str, int, int, int], outcomes: list[Outcome]) -> dict[str, Any]:
    name, seed, start, stop = key
    failed = [
        {"number": start + i, "signature": f"{name} {one.signature}", "said": one.said}
        for i, one in enumerate(outcomes)
        if not one.good
    ]
    counts = Counter(one.kind for one in outcomes)
    return {"format": name, "seed": seed, "start": start, "stop": stop, "kinds": counts, "failed": failed}


def _table(blocks: list[dict[str, Any]]) -> list[str]:
    """Outcomes by format, 80 columns wide."""
    kinds = ("fine", "refused", "traceback", "hang", "memory", "wrong", "mute", "left", "died")
    heads = ("fine", "refused", "trace", "hang", "mem", "wrong", "mute", "left", "died")
    lines = [f"{'format':13}{'cases':>9}{heads[0]:>7}{heads[1]:>8}" + "".join(f"{h:>6}" for h in heads[2:])]
    assert set(kinds) == set(KINDS)
    totals: Counter[str] = Counter()
    rows: dict[str, Counter[str]] = {}
    for block in blocks:
        rows.setdefault(block["format"], Counter()).update(block["kinds"])
        totals.update(block["kinds"])
    for name, counts in [*rows.items(), ("all", totals)]:
        number = counts.total()
        shares = f"{counts['fine'] / number:7.1%}{counts['refused'] / number:8.1%}"
        lines.append(f"{name:13}{number:>9,}{shares}" + "".join(f"{counts[kind]:>6}" for kind in kinds[2:]))
    return lines


def _failures(blocks: list[dict[str, Any]]) -> dict[str, tuple[int, int, str]]:
    """By signature: the first case's number, how many there are, what the first said."""
    found: dict[str, tuple[int, int, str]] = {}
    for block in blocks:
        for one in block["failed"]:
            number, total, said = found.get(one["signature"], (one["number"], 0, one["said"]))
            found[one["signature"]] = number, total + 1, said
    return dict(sorted(found.items(), key=lambda entry: -entry[1][1]))
