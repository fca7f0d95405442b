"""``madmax_study``: what MAD-Max (arXiv 2310.02784) found, asked again here.

Its numbers stand beside ours: parts of DLRM-A's step on 128 A100 of 40 GB (its artifact's notebook 1), shares
of exposed communication, gains over shards everywhere, and what twelve trillion parameters need.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from simcore.analysis.totals import Total
from simcore.apps.options import Json
from simcore.apps.progress import StageTimer, say
from simcore.apps.run.scenario import resolve_scenario
from simcore.apps.run.simulation import FinishedRun, run_scenario
from simcore.apps.studies.classes import baseline, best_of, class_step, classes_of, strategies
from simcore.errors import InputError, OutOfMemoryError, nearest

#: MAD-Max's systems as cluster profiles here.
SYSTEMS: Final = {
    "ZionEX": "a100-roce-128", "p4d.24xlarge": "a100-efa-128", "ND96asr_v4": "a100-40gb-128",
    "a2-highgpu-8g": "a100-a2-128", "a2-megagpu-16g": "a100-a2-mega-128", "p5.48xlarge": "h100-efa-128",
}  # fmt: skip
#: Rows travel in 16 bits, as its models have them.
_ROWS: Final = {"software.embedding_output": "float16"}
_TRAINING: Final = {"training.global_batch": "65536", **_ROWS}
_LLM: Final = {"training.recompute": "full", "training.micro_batch": "1", "parallel.cp": "1"}
#: Models, with where and how they are asked: cluster, settings for pre-training.
MODELS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "dlrm-a": ("a100-roce-128", _TRAINING),
    "dlrm-a-transformer": ("a100-roce-128", _TRAINING),
    "dlrm-a-moe": ("a100-roce-128", _TRAINING),
    "dlrm-b": ("a100-roce-128", _TRAINING),
    "dlrm-b-transformer": ("a100-roce-128", _TRAINING),
    "dlrm-b-moe": ("a100-roce-128", _TRAINING),
    "llama-65b": ("a100-roce-2048", {**_LLM, "training.global_batch": "2048"}),
    "gpt3-175b": ("a100-roce-2048", {**_LLM, "training.global_batch": "2048"}),
}
_DEALT: Final = {"strategy.dense": "ddp", "strategy.expert": "mp"}
_INFERENCE: Final = {"training.trainable": "none", "training.optimizer": "none"}
#: Of inference: samples of a GPU (its task dlrm_inference).
_ASKED: Final = 128
#: Milliseconds of its notebook 1, and what was measured, serialised.
PUBLISHED: Final = {
    "products": 8.91,
    "lookups": 9.10,
    "all_to_all": 26.40,
    "all_reduce": 21.27,
    "step": 54.00,
}
_NAMES: Final = {
    "products": ("aten::mm", "aten::addmm"), "lookups": ("table_lookup",),
    "updates of rows": ("table_update", "key_sort"),
}  # fmt: skip


def _finished(model: str, cluster: str, settings: Mapping[str, str], folder: Path) -> FinishedRun:
    scenario = resolve_scenario(model, cluster=cluster, settings=dict(settings))
    return run_scenario(scenario, folder / "run", StageTimer(shown=False), perfetto=False)


def parts() -> dict[str, float]:
    """Of DLRM-A's step on ZionEX, ms: kernels and collectives each by itself, and the step with overlap."""
    cluster, settings = MODELS["dlrm-a"]
    with tempfile.TemporaryDirectory() as folder:
        done = _finished("dlrm-a", cluster, {**settings, "strategy.dense": "ddp"}, Path(folder))
    found = dict.fromkeys((*PUBLISHED, *_NAMES), 0.0)
    ranks = done.analysis.num_ranks
    for key, total in done.analysis.kernels:
        for part, names in _NAMES.items():
            if str(key[0]).startswith(names):
                found[part] += _alone_ms(total, ranks)
    for key, total in done.analysis.collectives:
        for part in ("all_to_all", "all_reduce"):
            if part in str(key[0]):
                found[part] += _alone_ms(total, ranks)
    found["step"] = 1e3 * done.analysis.step_s
    exposed = done.analysis.breakdown_s()["exposed_communication"]
    return {**found, "exposed share": exposed / done.analysis.step_s}


def _alone_ms(total: Total, ranks: int) -> float:
    """Mean of a rank, without what sharing the GPU and the links adds."""
    return total.alone_ps / ranks / 1e9


def exposed() -> Iterator[dict[str, Any]]:
    """Share of the step that communication is exposed for: DDP, tables and experts dealt out."""
    for model in ("dlrm-a", "dlrm-b", "dlrm-a-transformer", "dlrm-a-moe"):
        for system, cluster in SYSTEMS.items():
            say(f"{model} on {system} ...")
            with tempfile.TemporaryDirectory() as folder:
                try:
                    done = _finished(model, cluster, {**_TRAINING, **_DEALT}, Path(folder))
                except OutOfMemoryError as error:
                    yield {"model": model, "system": system, "reason": str(error).splitlines()[0]}
                    continue
            share = done.analysis.breakdown_s()["exposed_communication"] / done.analysis.step_s
            yield {"model": model, "system": system, "step_ms": 1e3 * done.analysis.step_s, "exposed": share}


def gains(names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The best strategy of each model, and how much faster it is than shards everywhere."""
    for model in names:
        cluster, training = MODELS[model]
        listed = model.startswith("dlrm")
        asked = str(_ASKED * 128)
        tasks = {"pre-training": dict(training), **({"inference": {
            **training, **_INFERENCE, "training.global_batch": asked}} if listed else {})}  # fmt: skip
        classes = classes_of(model, cluster, training)
        for task, settings in tasks.items():
            say(f"{model}, {task} ...")
            steps = [class_step(model, cluster, settings, one) for one in strategies(classes)]
            before = class_step(model, cluster, settings, baseline(classes))
            best = best_of(steps)
            row: dict[str, Any] = {"model": model, "task": task}
            if best is None or before.step_s is None:
                yield {**row, "reason": before.reason or "no strategy fits"}
                continue
            assert best.step_s is not None
            refused = sum(one.step_s is None for one in steps)
            yield {
                **row, "step_ms": 1e3 * best.step_s, "gain": before.step_s / best.step_s,
                "strategy": str(best.strategy), "tried": len(steps), "refused": refused,
            }  # fmt: skip


def needs() -> Iterator[dict[str, Any]]:
    """The fewest GPUs, by doubling, on which the model of twelve trillion parameters trains."""
    for kind, family in (("A100 40 GB", "a100-roce"), ("A100 80 GB", "a100"), ("H100 80 GB", "h100")):
        for gpus in (64, 128, 256, 512, 1024, 2048):
            say(f"dlrm-12t on {gpus} {kind} ...")
            settings = {**_ROWS, "strategy.tables": "row_wise", "training.global_batch": "65536"}
            step = class_step("dlrm-12t", f"{family}-{gpus}", settings, baseline(["embedding", "dense"]))
            if step.step_s is not None:
                yield {"gpu": kind, "gpus": gpus, "step_ms": 1e3 * step.step_s}
                break
        else:
            yield {"gpu": kind, "gpus": None, "reason": step.reason}


def madmax_study(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help=f"Of {', '.join(MODELS)}. Default: all.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """MAD-Max's findings beside ours: parts, exposed communication, gains over shards everywhere, 12T."""
    for name in models or ():
        if name not in MODELS:
            raise InputError(f"unknown model {name!r}{nearest(name, tuple(MODELS))}")
    found: dict[str, Any] = {}
    if not models:
        found = {"parts": parts(), "published": PUBLISHED, "exposed": list(exposed()), "needs": list(needs())}
    found["gains"] = list(gains(tuple(models or MODELS)))
    print(json.dumps(found) if as_json else "\n".join(tables(found)))


def tables(found: Mapping[str, Any]) -> list[str]:
    """Markdown."""
    out: list[str] = []
    if "parts" in found:
        out += ["| DLRM-A on 128 A100 40 GB | MAD-Max, ms | here, ms |", "|---|---|---|"]
        out += [f"| {part} | {said:.2f} | {found['parts'][part]:.2f} |" for part, said in PUBLISHED.items()]
        out.append(f"| updates of rows | among lookups | {found['parts']['updates of rows']:.2f} |")
        out += [f"| exposed communication, of the step | | {found['parts']['exposed share']:.1%} |", ""]
        out += ["| model | " + " | ".join(SYSTEMS) + " |", "|---" * (1 + len(SYSTEMS)) + "|"]
        for model in dict.fromkeys(row["model"] for row in found["exposed"]):
            cells = [
                f"{row['step_ms']:.1f} ms, {row['exposed']:.0%}" if "step_ms" in row else "does not fit"
                for row in found["exposed"]
                if row["model"] == model
            ]
            out.append(f"| {model} | {' | '.join(cells)} |")
        out += ["", "| GPU | the fewest for DLRM-12T | step, ms |", "|---|---|---|"]
        for row in found["needs"]:
            step = f"{row['step_ms']:.1f}" if row["gpus"] else row["reason"]
            out.append(f"| {row['gpu']} | {row['gpus'] or '-'} | {step} |")
        out.append("")
    out += [
        "| model | task | best, ms | over shards everywhere | strategy | tried, refused |",
        "|---" * 6 + "|",
    ]
    for row in found["gains"]:
        if "reason" in row:
            out.append(f"| {row['model']} | {row['task']} | - | - | {row['reason']} | |")
            continue
        shown = (
            row["model"], row["task"], f"{row['step_ms']:.1f}", f"{row['gain']:.2f}x", row["strategy"],
            f"{row['tried']}, {row['refused']}",
        )  # fmt: skip
        out.append(f"| {' | '.join(shown)} |")
    return out
