"""The command ``bench plan``: what a plan costs, and how far bounds are below the steps that they bound."""

from __future__ import annotations

import json
import tempfile
from typing import Annotated, Any, Final

import typer

from simcore.apps.bench.exact import exact_lines, exact_spaces
from simcore.apps.bench.tightness import tightness, tightness_lines
from simcore.apps.child import run_python
from simcore.apps.options import Json
from simcore.apps.progress import say
from simcore.errors import InputError, nearest

#: Plans by name: what is asked, and in how many seconds it should be answered on two cores.
PLANS: Final = {
    "llama3-70b": (("--cluster", "h100-1024", "--global-batch", "1024", "--seq", "8192"), 60.0),
    "deepseek-v3": (("--cluster", "h800-2048", "--global-batch", "15360", "--seq", "4096"), 180.0),
}
_GAP: Final = 0.02
_COMMAND: Final = ("-c", "from simcore.apps.process import alone; alone('simcore.apps.plan.command:plan')")


def bench_plan(
    plans: Annotated[
        list[str] | None, typer.Argument(help="Plans by name. Default: all.", show_default=False)
    ] = None,
    bounds: Annotated[
        int, typer.Option(min=0, help="Instead: how tight bounds are, over so many random jobs.")
    ] = 0,
    published: Annotated[
        bool, typer.Option("--published", help="The same over the largest published job of each family.")
    ] = False,
    runs: Annotated[
        str | None, typer.Option(metavar="CSV", help="The same over the rows of a table of published runs.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Instead: small spaces simulated whole, and what searches find.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the random jobs.")] = 19,
    as_json: Json = False,
) -> None:
    """What a plan costs from starting Python to its last file; how tight its bounds are; what it finds."""
    if bounds or published or runs:
        told = tightness(bounds, seed, published=published, runs=runs)
        print(json.dumps(told) if as_json else tightness_lines(told))
        return
    if exact:
        spaces = exact_spaces()
        print(json.dumps(spaces) if as_json else exact_lines(spaces))
        return
    for name in plans or ():
        if name not in PLANS:
            raise InputError(f"unknown plan {name!r}{nearest(name, PLANS)}")
    rows = {}
    for name in plans or PLANS:
        say(f"{name} ...")
        rows[name] = measure_plan(name)
    if as_json:
        print(json.dumps({"rows": rows}))
        return
    for name, row in rows.items():
        print(
            f"{name}: {row['num_candidates']:,} candidates in {row['wall_s']:.0f} s (goal"
            f" {PLANS[name][1]:g} s), {row['candidates_per_s']:,.0f} a second bounded,"
            f" {row['num_simulated']} simulated ({row['simulated_per_s']:.2g} a second),"
            f" gap {row['gap']:.1%} (goal {_GAP:.0%}), {row['cpu_s']:.0f} s of CPU time"
        )


def measure_plan(name: str) -> dict[str, Any]:
    """One plan in a process of its own and a folder that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="bench-plan-") as folder:
        spent = run_python([*_COMMAND, name, *PLANS[name][0], "--json", "--out", folder])
    found = json.loads(spent.stdout)
    return {
        "wall_s": spent.wall_s,
        "cpu_s": spent.cpu_s,
        "num_candidates": found["num_candidates"],
        "num_simulated": found["num_simulated"],
        "candidates_per_s": found["num_candidates"] / found["seconds"]["appraising"],
        "simulated_per_s": found["num_simulated"] / found["seconds"]["simulating"],
        "gap": found["certificate"]["gap"],
        "best": found["best"]["strategy"],
        "step_time_s": found["best"]["step_time_s"],
    }
