"""What a slower network costs traced data-parallel jobs, against Echo's table 10.

Echo (arXiv 2412.12487, table 10) slows the network of 16 nodes of 8 A100 from 1.6 Tb/s to 100 Gb/s per node
and measures VGG19, ResNet152, BERT-Large and GPT-2.  Batch sizes and precision are unpublished: every case is
run over some that are usual (tf32: products of fp32 numbers on tensor cores), and the band of slow-downs
stands beside what was measured.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from simcore.apps.child import ask_run_sim
from simcore.apps.options import Json
from simcore.apps.progress import say
from simcore.errors import InputError, nearest
from simcore.records import dataclass

GPUS = 128
CLUSTER = f"a100-{GPUS}"
#: Of each of a node's 8 ports: 1.6 Tb/s and 100 Gb/s per node.
NIC_GBITS_PER_S = (200.0, 12.5)


@dataclass(frozen=True)
class Model:
    """One row of the table.  ``options``: of the recipe ``script``; ``batches``: per GPU, in samples;
    ``half``: what makes the script compute in bf16, ``full`` in fp32.
    """

    script: str
    options: str
    batches: tuple[int, ...]
    half: str
    full: str
    measured: float


MODELS = {
    "vgg19": Model("vision.py", "--model vgg19", (16, 32, 64), "--amp", "", 1.091),
    "resnet152": Model("vision.py", "--model resnet152", (16, 32, 64), "--amp", "", 1.046),
    "bert-large": Model("hugging_face.py", "--model bert-large --seq 512", (2, 4, 16), "", "--fp32", 1.276),
    "gpt2": Model("hugging_face.py", "--model gpt2 --seq 1024", (2, 4, 16), "", "--fp32", 1.192),
}


@dataclass(frozen=True)
class BandwidthRow:
    """One batch size.  Seconds per step on the fast and on the slow network; ``slow_down``: their ratio."""

    model: str
    batch: int
    precision: str
    fast_s: float
    slow_s: float
    slow_down: float
    measured: float


def rows(names: Sequence[str]) -> Iterator[BandwidthRow]:
    """Trace and simulate every batch size of the models ``names``."""
    from workloads.tracing.drive.rounds import workers

    with tempfile.TemporaryDirectory() as folder, workers() as pool:
        for name in names:
            model = MODELS[name]
            for option, precisions in ((model.full, ("fp32", "tf32")), (model.half, ("bf16",))):
                for batch in model.batches:
                    say(f"{name}, {'/'.join(precisions)}, {batch} samples per GPU ...")
                    target = Path(folder) / f"{name}-{precisions[0]}-{batch}"
                    options = [*model.options.split(), "--batch", str(batch), *option.split()]
                    _trace(pool, model.script, options, target)
                    for precision in precisions:
                        tf32 = precision == "tf32"
                        fast_s, slow_s = (_step_s(target, gbits, tf32=tf32) for gbits in NIC_GBITS_PER_S)
                        yield BandwidthRow(
                            name, batch, precision, fast_s, slow_s, slow_s / fast_s, model.measured
                        )


def _trace(pool: object, script: str, options: list[str], target: Path) -> None:
    import workloads.tracing.recipes
    from simcore.graph import save_graph
    from workloads.tracing.drive.script_job import ScriptJob
    from workloads.tracing.drive.trace import trace_in

    path = Path(workloads.tracing.recipes.__file__).parent / script
    job = ScriptJob(path, tuple(options), world_size=GPUS)
    save_graph(trace_in(pool, job, name=target.name), target)  # type: ignore[arg-type]


def _step_s(graph: Path, gbits_per_s: float, *, tf32: bool) -> float:
    """Seconds per step, as the command ``run_sim`` finds them."""
    arguments = [str(graph), "--cluster", CLUSTER, "--out", str(graph) + ".run", "--force"]
    arguments += ["--set", f"cluster.nic_bytes_per_s={gbits_per_s}Gb/s"]
    arguments += ["--set", f"workload.fp32_math={'tf32' if tf32 else 'ieee'}"]
    try:
        return float(ask_run_sim(arguments)["step_time_s"])
    except InputError as error:
        raise InputError(f"{graph.name}: {error}") from None


def bandwidth_study(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help=f"Of {', '.join(MODELS)}. Default: all.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """What a slower network costs traced data-parallel jobs, against Echo's table 10."""
    for name in models or ():
        if name not in MODELS:
            raise InputError(f"unknown model {name!r}{nearest(name, tuple(MODELS))}")
    found = list(rows(models or tuple(MODELS)))
    print(json.dumps({"rows": [asdict(row) for row in found]}) if as_json else table(found))


def table(found: Sequence[BandwidthRow]) -> str:
    """Markdown: a line per model and precision, with the band over batch sizes."""
    lines = [
        "| model | precision | samples per GPU | step at 1.6 Tb/s, ms | slow-down | measured |",
        "|---|---|---|---|---|---|",
    ]
    for model, precision in dict.fromkeys((row.model, row.precision) for row in found):
        same = [row for row in found if (row.model, row.precision) == (model, precision)]
        batches, steps, slow_downs = (
            ", ".join(texts)
            for texts in zip(
                *((str(row.batch), f"{1e3 * row.fast_s:.1f}", f"{row.slow_down:.3f}") for row in same),
                strict=True,
            )
        )
        lines.append(f"| {model} | {precision} | {batches} | {steps} | {slow_downs} | {same[0].measured} |")
    return "\n".join(lines)
