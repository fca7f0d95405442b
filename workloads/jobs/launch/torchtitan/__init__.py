"""torchtitan: keys of its configuration, as flags of 0.3.0 or in a TOML file of versions before.

A configuration's function (``--config llama3_70b``) says a model and what its keys begin with; in a TOML file
a model's name and flavor do.  What is written says all that a description has: nothing rests on those.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from simcore.errors import InputError
from workloads.jobs.complete import Description
from workloads.jobs.launch.dialect import Dialect
from workloads.jobs.launch.options import Words, flat_words
from workloads.jobs.launch.torchtitan.configs import CONFIGS, begun, config_for
from workloads.jobs.launch.torchtitan.table import SCHEDULES_OF_TORCH, TABLE, compiles

#: Keys that leave a step's time as it is.
_NO_INFLUENCE: Final = re.compile(
    r"(job|profiling|profiler|metrics|lr_scheduler|checkpoint|comm|debug|validation|validator|dataloader|loss"
    r"|experimental|memory_estimation|fault_tolerance|hf_assets_path|dump_folder|override)(\..*)?"
    r"|optimizer\.(?!implementation).*|model\.(hf_assets_path|tokenizer_path|print_after_conversion)"
    r"|training\.(steps|dataset|dataset_path|max_norm|gc_freq|gc_debug|seed|deterministic|mixed_precision_reduce"
    r"|warmup_steps)|parallelism\.(disable_loss_parallel|context_parallel_(rotate_method|load_balancer))"
    r"|quantize\.linear\.float8\.(filter_fqns|precompute_float8_dynamic_scale_for_fsdp)|compile\.backend"
    r"|activation_checkpoint\.(early_stop|per_op_sac_force_recompute_mm_shapes_by_fqns)"
)

#: Keys, and beginnings of keys, before 0.2.
_OLDER: Final[Mapping[str, str]] = {
    "training.compile": "compile.enable", "training.batch_size": "training.local_batch_size",
    "float8.": "quantize.linear.float8.",
    **{
        f"training.{name}": f"parallelism.{name}"
        for name in (
            "data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree",
            "enable_async_tensor_parallel",
        )
    },
    **{
        f"experimental.{name}": f"parallelism.{name}"
        for name in (
            "pipeline_parallel_degree", "pipeline_parallel_schedule", "context_parallel_degree",
            "enable_async_tensor_parallel", "pipeline_parallel_microbatches",
        )
    },
}  # fmt: skip


def _refused(job: Description) -> Iterator[str]:
    p, training = job.parallel, job.training
    if config_for(job) is None:
        names = sorted(one.model for one in CONFIGS if one.name and isinstance(one.model, str))
        yield f"it has no configuration of model {job.model.name}: its own are {', '.join(names)}"
    if training.sharding not in ("fsdp2", "ddp"):
        yield f"training.sharding={training.sharding}: it has fsdp2, and ddp"
    if p.pp > 1 and p.schedule not in (*SCHEDULES_OF_TORCH.values(), "interleaved"):
        yield f"parallel.schedule={p.schedule}"
    if p.cp > 1 and p.cp_style not in ("torch", "all_gather"):
        yield f"parallel.cp_style={p.cp_style}: it has torch's, and all_gather since 2026"
    if training.recompute == "selective":
        yield "training.recompute=selective: it has none, full and ops"
    if training.precision not in ("bf16", "fp8", "fp32"):
        yield f"training.precision={training.precision}: it has bf16, fp8 and fp32"
    if training.trainable != "all":
        yield f"training.trainable={training.trainable}: all parameters train"


def parsed(words: Sequence[str], where: str) -> tuple[Words, list[str]]:
    """Flags by key: ``--section.key value``, switches ``--section.key`` and ``--section.no-key``."""
    found: dict[str, list[str]] = {}
    key = ""
    for word in words:
        if word.startswith("activation-checkpoint:"):
            found["activation_checkpoint.mode"] = [word.partition(":")[2].replace("-", "_")]
            key = ""
        elif word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            key = name.replace("-", "_")
            section, _, last = key.rpartition(".")
            if last.startswith("no_"):
                key, value, equals = f"{section}.{last[3:]}".lstrip("."), "false", "="
            found[key] = [value] if equals else []
        elif not key:
            raise InputError(f"{where}: {word[:80]!r} is behind no flag")
        else:
            found[key].append(word)
    switched = {key: tuple(values or ("true",)) for key, values in found.items()}
    return begun(switched, where), []


def _document(content: Mapping[str, Any], where: str) -> Words:
    return flat_words(content, where)


def _rendered(job: Description, words: Words, gpus_per_node: int) -> str:
    nodes = -(-job.parallel.world_size // gpus_per_node)
    each = min(gpus_per_node, job.parallel.world_size)
    lines = []
    for key, values in words.items():
        section, _, last = key.rpartition(".")
        if key == "activation_checkpoint.mode":
            continue
        if values in (("true",), ("false",)):
            lines.append(f"--{section}.{'' if values == ('true',) else 'no_'}{last}")
        else:
            lines.append(" ".join((f"--{key}", *map(shlex.quote, values))))
    flags = "\n".join(f"    {line}" for line in lines)
    mode = words["activation_checkpoint.mode"][0]
    return (
        f"FLAGS=(\n{flags}\n)\n"
        f"torchrun --nnodes ${{NNODES:-{nodes}}} --nproc-per-node {each}"
        " --rdzv-backend c10d --rdzv-endpoint ${MASTER_ADDR:-localhost}:29500 \\\n"
        f'    -m torchtitan.train "${{FLAGS[@]}}" "$@" activation-checkpoint:{mode}\n'
    )


def _preset(words: Words) -> str:
    """Flags are those of 0.3.0, files of versions before."""
    build = "torchtitan-0.3" if "config" in words else "torchtitan-fsdp2"
    return build if compiles(words) else f"{build}-eager"


def _heard(words: Words) -> Words:
    """Words with the names that keys have had since 0.2."""
    found = {**words}
    for old, new in _OLDER.items():
        for key in [key for key in found if key == old or (old.endswith(".") and key.startswith(old))]:
            value = found.pop(key)
            found.setdefault(new + key[len(old) :], value)
    return found


TORCHTITAN: Final = Dialect(
    name="torchtitan",
    called="torchtitan",
    table=TABLE,
    preset=_preset,
    no_influence=_NO_INFLUENCE,
    refused=_refused,
    parsed=parsed,
    document=_document,
    rendered=_rendered,
    suffix=".sh",
    heard=_heard,
)
