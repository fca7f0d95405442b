"""Options that several commands have, each with one help text."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Take numbers of hardware that none has (the run says so); write over the answer to another"
        " question.",
    ),
]

#: Of a command that completes a job as ``run-sim`` does.
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one thing, as for run_sim.py; repeatable."),
]
Edits = Annotated[
    list[str] | None,
    typer.Option(
        "--edit",
        metavar="KEY=VALUE",
        help="What if: change the workload; repeatable, in the order given. Keys: docs/what-if.md.",
    ),
]
FromMegatron = Annotated[
    str | None,
    typer.Option(
        metavar="FLAGS|FILE",
        help="Megatron-LM's flags, or a launch script, argument file or YAML of them, in place of WORKLOAD"
        " (docs/launch.md).",
    ),
]
FromTorchtitan = Annotated[
    str | None,
    typer.Option(
        metavar="FLAGS|FILE", help="torchtitan's flags, or a script or TOML file of them, likewise."
    ),
]
Emit = Annotated[
    str | None,
    typer.Option(
        metavar="FRAMEWORK", help="Also write a file by which this framework runs the job (docs/launch.md)."
    ),
]

Interference = Annotated[
    str,
    typer.Option(
        metavar="shared|learned[:FILE]",
        help="How communication slows kernels: SMs and HBM that they share, or a function learned from"
        " traces (default file: the one that comes with the project; scripts/calibrate.py makes others).",
    ),
]
Prices = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|aws|azure|gcp", help="What GPUs cost an hour (docs/planning.md): also say costs."
    ),
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="HOST:PORT|auto|local", help="Simulate on a Ray cluster (docs/sweeps.md)."),
]
