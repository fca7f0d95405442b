"""Commands killed and disturbed while they write: ``chaos.py --kills 1000 --seed 1 [--keep DIR]``.

Each command that keeps something on disk is killed (-9) at random moments; beside that, disks are full or
read-only, two processes write to one place, clocks jump and workers are killed; with ``--nodes``, nodes of a
Ray cluster, too.  Afterwards what was written must be absent, the old or the new, whole, and the next run
must succeed and leave nothing else.
Exit code 1: it was not so; the folders concerned are kept in ``--keep``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.errors import as_app
from simcore.apps.progress import Countdown
from simcore.errors import InputError, nearest
from tests.chaos.commands import COMMANDS
from tests.chaos.play import Chaos, table


def main(
    kills: Annotated[int, typer.Option(help="Kills.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Of what is done when.")] = 0,
    others: Annotated[int, typer.Option(help="Cases of each other kind.", min=0)] = 20,
    command: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this command; repeatable.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="Sweeps on Ray of which a node is killed.", min=0)] = 0,
    keep: Annotated[Path | None, typer.Option(help="Folder for cases that went wrong.")] = None,
) -> None:
    """Kill and disturb commands while they write."""
    known = {one.name: one for one in COMMANDS}
    for name in command or ():
        if name not in known:
            raise InputError(f"--command: unknown command {name!r}{nearest(name, known)}")
    chosen = [known[name] for name in command] if command else COMMANDS
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        chaos = Chaos(Path(folder), seed, keep, chosen)
        cases = [chaos.kill] * kills + [fault for fault in chaos.faults for _ in range(others)]
        if nodes:
            from tests.chaos.nodes import KilledNodes

            cases += [KilledNodes(Path(folder), chaos.found, seed)] * nodes
        progress = Countdown("cases")
        for done, case in enumerate(cases, start=1):
            case()
            progress(done, len(cases))
    print(table(chaos.found.counts))
    for line in chaos.found.wrong:
        print(line)
    sys.exit(1 if chaos.found.wrong else 0)


if __name__ == "__main__":
    as_app(main)()
