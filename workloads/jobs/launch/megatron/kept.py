"""What forward keeps, by Megatron-LM's flags: what runs again, waits in the host's memory, or is captured in
graphs, which have a pool of their own.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from simcore.errors import nearest
from workloads.jobs.complete import Description
from workloads.jobs.launch.options import Option, Said, Settings, Words
from workloads.models.offload import OffloadModule
from workloads.models.recompute import RecomputeModule

_MODULES: Final = get_args(RecomputeModule)
_OFFLOADED: Final = get_args(OffloadModule)
#: What of layers is captured that leaves nothing else of them, by ``--cuda-graph-scope``: with experts, too.
_WHOLE_GRAPHS: Final = ({"full"}, {"full_iteration"}, {"attn", "moe"})


def _read_recompute(said: Said) -> Settings:
    how = said.meant("--recompute-granularity", {"full": "full", "selective": "selective"}, "none")
    if said.has("--recompute-activations") and how == "none":
        how = "selective"
    methods = {"uniform": "uniform", "block": "block"}
    older = said.meant("--activations-checkpoint-method", methods, "")  # before 2022
    if (said.has("--checkpoint-activations") or older) and how == "none":
        how = "full"
    method = said.meant("--recompute-method", methods, older)
    found: dict[str, Any] = {"training.recompute": how, "training.recompute_layers": -1}
    if how == "full":
        layers = said.number("--recompute-num-layers", said.number("--activations-checkpoint-num-layers", 1))
        if method == "block":
            found["training.recompute_layers"] = layers
        elif layers > 1:
            said.notes.append(
                f"--recompute-num-layers {layers} with --recompute-method uniform: one checkpoint for so many"
                " layers; taken as one for each, which keeps more"
            )
    modules = said.words.get("--recompute-modules", ())
    if said.has("--moe-layer-recompute") and how != "full":  # an older name of it
        how, modules = "selective", (*modules, "moe")
        found["training.recompute"] = how
    known = {name: name for name in _MODULES}
    for module in modules:
        if module not in known:
            raise said.wrong("--recompute-modules", f"unknown module{nearest(module, known)}")
    found["training.recompute_modules"] = tuple(modules) if how == "selective" else ()
    return found


def _write_recompute(job: Description) -> Words:
    training = job.training
    if training.recompute == "full":
        block = training.recompute_layers >= 0
        return {
            "--recompute-granularity": ("full",),
            "--recompute-method": ("block" if block else "uniform",),
            "--recompute-num-layers": (str(training.recompute_layers if block else 1),),
        }
    if training.recompute != "selective":
        return {}
    found: Words = {"--recompute-granularity": ("selective",)}
    modules = training.recompute_modules
    return {**found, "--recompute-modules": tuple(modules)} if modules else found


def _read_offloading(said: Said) -> Settings:
    """Activations that wait in the host's memory: of single modules, or all of the first layers."""
    layers = said.number("--cpu-offloading-num-layers", 0)
    modules = said.words.get("--offload-modules", ())
    known = {name: name for name in _OFFLOADED if name != "layer"}
    for module in modules:
        if module not in known:
            raise said.wrong("--offload-modules", f"unknown module{nearest(module, known)}")
    if said.has("--fine-grained-activation-offloading"):
        if not modules:
            raise said.wrong("--fine-grained-activation-offloading", "--offload-modules says of what")
        return {"training.offload": tuple(modules), "training.offload_layers": -1}
    return {"training.offload": ("layer",) if layers else (), "training.offload_layers": layers or -1}


def _write_offloading(job: Description) -> Words:
    training = job.training
    if training.offload == ("layer",):
        layers = training.offload_layers if training.offload_layers >= 0 else job.transformer.num_layers
        return {"--cpu-offloading-num-layers": (str(layers),)} if layers else {}
    if not training.offload:
        return {}
    return {"--fine-grained-activation-offloading": (), "--offload-modules": tuple(training.offload)}


def _read_graphs(said: Said) -> Settings:
    """Graphs of whole layers (or of a whole iteration), or of some of their modules."""
    usual = "local" if said.has("--enable-cuda-graph") else "none"
    usual = "transformer_engine" if said.has("--external-cuda-graph") else usual
    kinds = {name: name for name in ("none", "local", "transformer_engine", "full_iteration")}
    kind = said.meant("--cuda-graph-impl", kinds, usual)
    said_parts = {*said.words.get("--cuda-graph-scope", ()), *said.words.get("--cuda-graph-modules", ())}
    parts = {part for word in said_parts for part in word.split(",")}
    dense = [] if said.has("--num-experts") else [{"attn", "mlp"}]
    whole = kind == "full_iteration" or not parts or any(one <= parts for one in (*_WHOLE_GRAPHS, *dense))
    return {"software.cuda_graphs": kind != "none" and (True if whole else "modules")}


def _write_graphs(job: Description) -> Words:
    kind = job.software.cuda_graphs
    if not kind:
        return {}
    found: dict[str, tuple[str, ...]] = {"--cuda-graph-impl": ("transformer_engine",)}
    return found if kind is True else {**found, "--cuda-graph-scope": ("attn", "moe_router")}


#: Options of what is kept.
KEPT: Final = (
    Option(
        (
            "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--recompute-modules",
            "--recompute-activations", "--checkpoint-activations", "--moe-layer-recompute",
            "--activations-checkpoint-method", "--activations-checkpoint-num-layers",
        ),
        _read_recompute, _write_recompute,
    ),
    Option(
        ("--fine-grained-activation-offloading", "--offload-modules", "--cpu-offloading-num-layers"),
        _read_offloading, _write_offloading,
    ),
    Option(
        (
            "--cuda-graph-impl", "--cuda-graph-scope", "--cuda-graph-modules", "--enable-cuda-graph",
            "--external-cuda-graph", "--cuda-graph-warmup-steps",
        ),
        _read_graphs, _write_graphs,
    ),
)  # fmt: skip
