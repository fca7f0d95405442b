"""Megatron-LM's flags of the layout: degrees, and which layers a pipeline stage holds."""

from __future__ import annotations

import re
from typing import Any, Final

from workloads.jobs.complete import Description
from workloads.jobs.launch.megatron.hybrid import layers_of, pattern_of
from workloads.jobs.launch.options import Option, Said, Settings, Words, choice, number, switch

_PP: Final = "--pipeline-model-parallel-size"
_LAYERS_PER_CHUNK: Final = "--num-layers-per-virtual-pipeline-stage"
_CHUNKS: Final = "--num-virtual-stages-per-pipeline-rank"
_FIRST, _LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
_LAYOUT: Final = "--pipeline-model-parallel-layout"
#: (t|)*3 or t*4: what is repeated, and how often.
_REPEATED: Final = re.compile(r"(?:\(([^()]*)\)|([Etml|]|L))\*([0-9]{1,4})")
_LONGEST: Final = 1 << 10
_MOST_LETTERS: Final = 1 << 16


def _read_stages(said: Said) -> Settings:
    pp = said.count(_PP)
    found: dict[str, Any] = {"parallel.pp": pp, "parallel.schedule": "1f1b"}
    if said.has(_LAYOUT):
        return {**found, **_read_layout(said, pp)}
    stages = pattern_of(said).stages
    if len(stages) > 1:
        if pp < 1 or len(stages) % pp:
            raise said.wrong(_PP, f"{len(stages)} stages of the pattern are no multiple of it")
        counts = tuple(map(len, stages))
        return {**found, "parallel.virtual_stages": len(stages) // pp, "parallel.stage_layers": counts}
    ends = {
        "parallel.embedding_as_layer": said.has("--account-for-embedding-in-pipeline-split"),
        "parallel.head_as_layer": said.has("--account-for-loss-in-pipeline-split"),
    }
    chunks = said.count(_CHUNKS)
    layers, per_chunk = layers_of(said), said.number(_LAYERS_PER_CHUNK, 0)
    if per_chunk:
        counted = layers + sum(ends.values())
        if per_chunk < 0 or counted % (pp * per_chunk):
            raise said.wrong(_LAYERS_PER_CHUNK, f"{counted} layers on {pp} stages are no multiple of it")
        chunks = counted // (pp * per_chunk)
    if pp * chunks > max(1, min(layers + 2, 1 << 12)):
        raise said.wrong(_PP, f"{pp * chunks} stages for {layers} layers")
    found["parallel.virtual_stages"] = chunks
    if pp > 1:
        found |= {**ends, "parallel.stage_layers": ()}
    first, last = said.number(_FIRST, None), said.number(_LAST, None)
    if first is not None or last is not None:
        found["parallel.stage_layers"] = _ends(said, layers, pp * chunks, chunks, first, last)
    return found


def _ends(
    said: Said, layers: int, stages: int, chunks: int, first: int | None, last: int | None
) -> tuple[int, ...]:
    """Layers of each virtual stage where the first and last pipeline stage have other numbers."""
    pp = stages // chunks
    between = pp - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    each = rest // (between * chunks) if between > 0 else 0
    wrong = (first or 0) % chunks or (last or 0) % chunks or each * between * chunks != rest
    if between < 0 or rest < 0 or wrong:
        name = _FIRST if first is not None else _LAST
        raise said.wrong(name, f"{layers} layers do not fall evenly on the other {between} stage(s)")
    of_stage = [
        first // chunks if stage == 0 and first is not None
        else last // chunks if stage == pp - 1 and last is not None
        else each
        for stage in range(pp)
    ]  # fmt: skip
    return tuple(of_stage * chunks)


def _read_layout(said: Said, pp: int) -> Settings:
    text = said.text(_LAYOUT, "")[:_LONGEST].replace(",", "").replace(" ", "")
    while found := _REPEATED.search(text):
        unit, times = found[1] if found[1] is not None else found[2], int(found[3])
        if len(text) + len(unit) * times > _MOST_LETTERS:
            raise said.wrong(_LAYOUT, "is longer than any model")
        text = text[: found.start()] + unit * times + text[found.end() :]
    stages = text.split("|")
    if set(text) - set("EtmL|") or not stages[0].startswith("E") or not stages[-1].endswith("L"):
        raise said.wrong(_LAYOUT, "letters E, t, m and L, such as Et*3|(tt|)*6tL")
    if pp < 1 or len(stages) % pp:
        raise said.wrong(_LAYOUT, f"{len(stages)} stages are no multiple of {pp}")
    if any("m" in stage for stage in stages[:-1]):
        said.notes.append(f"{_LAYOUT}: layers that predict further tokens are taken to be on the last stage")
    return {
        "parallel.virtual_stages": len(stages) // pp,
        "parallel.stage_layers": tuple(stage.count("t") for stage in stages),
        "parallel.embedding_as_layer": False,
        "parallel.head_as_layer": False,
    }


def _write_stages(job: Description) -> Words:
    p, model = job.parallel, job.transformer
    found: dict[str, tuple[str, ...]] = {} if p.pp == 1 else {_PP: (str(p.pp),)}
    if model.layer_pattern:  # whose letters are parted
        return found
    if p.stage_layers:
        stages = ["t" * count for count in p.stage_layers]
        text = "|".join(("E" + stages[0], *stages[1:])) if len(stages) > 1 else "E" + stages[0]
        text = re.sub(r"t{2,}", lambda run: f"t*{len(run[0])}", text)
        return {**found, _LAYOUT: (text + "m" * model.mtp_layers + "L",)}
    if p.virtual_stages > 1:
        counted = model.layers + p.embedding_as_layer + p.head_as_layer
        found[_LAYERS_PER_CHUNK] = (str(counted // (p.pp * p.virtual_stages)),)
    if p.embedding_as_layer:
        found["--account-for-embedding-in-pipeline-split"] = ()
    if p.head_as_layer:
        found["--account-for-loss-in-pipeline-split"] = ()
    return found


def _read_sequence(said: Said) -> Settings:
    if said.count("--tensor-model-parallel-size") == 1:
        return {}
    return {"parallel.sequence_parallel": said.has("--sequence-parallel")}


def _write_sequence(job: Description) -> Words:
    return {"--sequence-parallel": ()} if job.parallel.sequence_parallel and job.parallel.tp > 1 else {}


def _read_experts(said: Said) -> Settings:
    of_deepspeed = said.number("--moe-expert-parallel-size", 1)
    ep, etp = (
        said.number("--expert-model-parallel-size", of_deepspeed),
        said.number("--expert-tensor-parallel-size", 0),
    )
    return {"parallel.ep": ep, "parallel.etp": etp} if said.has("--num-experts") else {}


def _write_experts(job: Description) -> Words:
    p = job.parallel
    if job.transformer.moe is None:
        return {}
    found: dict[str, tuple[str, ...]] = {"--expert-model-parallel-size": (str(p.ep),)}
    if p.etp and p.etp != p.tp:
        found["--expert-tensor-parallel-size"] = (str(p.etp),)
    return found


#: How it is spread.
LAYOUT: Final = (
    number("--tensor-model-parallel-size", "parallel.tp", 1),
    Option(
        (
            _PP, _LAYERS_PER_CHUNK, _CHUNKS, _FIRST, _LAST, _LAYOUT,
            "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
        ),
        _read_stages, _write_stages,
    ),
    number("--microbatch-group-size-per-virtual-pipeline-stage", "parallel.microbatch_group", 0),
    number("--context-parallel-size", "parallel.cp", 1),
    choice(
        "--cp-comm-type", "parallel.cp_style",
        {"p2p": "ring", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "ulysses"}, "p2p",
    ),
    Option(
        ("--expert-model-parallel-size", "--expert-tensor-parallel-size", "--moe-expert-parallel-size"),
        _read_experts, _write_experts,
    ),
    Option(("--sequence-parallel",), _read_sequence, _write_sequence),
    switch("--use-tp-pp-dp-mapping", "parallel.order", on="tp-cp-ep-pp-dp", off="tp-cp-ep-dp-pp"),
)  # fmt: skip
