"""``export-chakra``: a workload's execution graph as MLCommons Chakra files, one per rank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simcore.apps.errors import reported_errors
from simcore.apps.process import one_command


def export(
    workload: Annotated[str, typer.Argument(help="A catalog name, or a folder with an execution graph.")],
    out: Annotated[Path, typer.Option(help="Folder for rank.N.et and comm_group.json.")],
    ranks: Annotated[str, typer.Option(help="Only these ranks, like 0,1,8-15; all when empty.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the execution graph of a workload as Chakra execution traces."""
    with reported_errors():
        import json

        from simcore.apps.progress import Stages
        from simcore.graph import load_graph
        from workloads import catalog
        from workloads.imports.chakra import export_chakra

        graph = load_graph(workload) if Path(workload).is_dir() else catalog.load(workload)
        chosen = _ranks(ranks) if ranks else None
        with Stages().stage("writing ranks") as update:
            nodes = export_chakra(graph, out, ranks=chosen, progress=update)
        count = graph.world_size if chosen is None else len(chosen)
        told = {"folder": str(out), "ranks": count, "nodes": nodes}
        print(json.dumps(told) if as_json else f"{count} ranks, {nodes:,} nodes in {out}")


def _ranks(text: str) -> set[int]:
    """Rank numbers of a list like 0,1,8-15.  InputError for anything else."""
    from simcore.errors import InputError

    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if not (low.isdigit() and (high or low).isdigit()) or int(high or low) - int(low) > 1 << 20:
            raise InputError(f"--ranks {text!r}: {part!r} is no rank or range of ranks, like 3 or 8-15")
        found |= set(range(int(low), int(high or low) + 1))
    return found


def main() -> None:
    """Run the command alone (``scripts/export_chakra.py``)."""
    with one_command():
        typer.run(export)
