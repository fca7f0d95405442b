"""What torchtitan's configurations train, and what their keys begin with (0.3.0, ``config_registry.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from simcore.errors import InputError, nearest
from simcore.records import dataclass
from workloads.jobs.complete import Description
from workloads.jobs.launch.options import Said, Words
from workloads.models.public import named_model
from workloads.models.spec import ModelSpec, transformer_of

_DEBUG: Final = {
    "family": "llama", "layers": 6, "hidden": 256, "heads": 16, "ffn": 768, "gated": True,
    "activation": "silu", "norm": "rmsnorm", "bias": False, "positions": "rotary", "vocab": 2048,
    "tied_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """What a configuration trains; ``begins``: its keys where they are not the classes' own."""

    name: str  # of the function; "": a flavor without one
    module: str
    flavor: str
    model: str | Mapping[str, Any]
    begins: Mapping[str, str] = field(default_factory=dict)

    def spec(self) -> ModelSpec:
        """Its dimensions."""
        return (
            transformer_of(named_model(self.model), "torchtitan")
            if isinstance(self.model, str)
            else ModelSpec(**self.model)
        )


def _begins(batch: int, seq: int, recompute: str = "selective", **more: str) -> dict[str, str]:
    keys = {"training.local_batch_size": str(batch), "training.seq_len": str(seq)}
    further = {key.replace("__", "."): value for key, value in more.items()}
    return {**keys, "activation_checkpoint.mode": recompute, **further}


CONFIGS: Final = (
    Config("llama3_debugmodel", "llama3", "debugmodel", _DEBUG,
            _begins(8, 2048, parallelism__pipeline_parallel_schedule="Interleaved1F1B")),
    Config("llama3_8b", "llama3", "8B", "llama3-8b", _begins(1, 8192)),
    Config("llama3_70b", "llama3", "70B", "llama3-70b",
            _begins(8, 8192, "full", parallelism__tensor_parallel_degree="8")),
    Config("llama3_405b", "llama3", "405B", "llama3-405b",
            _begins(2, 8192, "full", parallelism__tensor_parallel_degree="8", compile__enable="true",
                    model__converters="float8")),
    Config("", "llama3", "1B", "llama3.2-1b"),
    Config("", "llama3", "3B", "llama3.2-3b"),
    Config("qwen3_0_6b", "qwen3", "0.6B", "qwen3-0.6b", _begins(4, 4096)),
    Config("qwen3_1_7b", "qwen3", "1.7B", "qwen3-1.7b", _begins(4, 4096)),
    Config("", "qwen3", "4B", "qwen3-4b"),
    Config("", "qwen3", "8B", "qwen3-8b"),
    Config("qwen3_14b", "qwen3", "14B", "qwen3-14b", _begins(4, 4096, "full")),
    Config("qwen3_32b", "qwen3", "32B", "qwen3-32b", _begins(2, 4096, "full")),
    Config("qwen3_30b_a3b", "qwen3", "30B-A3B", "qwen3-30b-a3b", _begins(2, 4096, "full")),
    Config("", "qwen3", "235B-A22B", "qwen3-235b-a22b"),
    Config("deepseek_v3_16b", "deepseek_v3", "16B", "deepseek-v2-lite",
            _begins(4, 4096, compile__enable="true", parallelism__expert_parallel_degree="8",
                    parallelism__pipeline_parallel_schedule="Interleaved1F1B")),
    Config("deepseek_v3_671b", "deepseek_v3", "671B", "deepseek-v3",
            _begins(4, 4096, compile__enable="true", parallelism__expert_parallel_degree="2",
                    parallelism__pipeline_parallel_schedule="Interleaved1F1B")),
    Config("gpt_oss_20b", "gpt_oss", "20b", "gpt-oss-20b", _begins(1, 8192, "full")),
    Config("gpt_oss_120b", "gpt_oss", "120b", "gpt-oss-120b", _begins(1, 8192, "full")),
)  # fmt: skip


def config_of(said: Said) -> Config:
    """The configuration that is named, by its function or by model and flavor."""
    if said.has("config"):
        known = {config.name: config for config in CONFIGS if config.name}
        return said.meant("config", known, CONFIGS[0])
    module, flavor = said.text("model.name", ""), said.text("model.flavor", "")
    flavors = {config.flavor: config for config in CONFIGS if config.module == module}
    if not flavors:
        modules = {config.module for config in CONFIGS}
        raise InputError(f"{said.where}: model.name = {module!r}{nearest(module, modules)}")
    return said.meant("model.flavor", flavors, flavors.get(flavor, CONFIGS[0]))


def begun(words: Words, where: str) -> Words:
    """``words`` over those that their configuration begins with."""
    begins = config_of(Said(words, where, 1)).begins if "config" in words else {}
    return {**{key: (value,) for key, value in begins.items()}, **words}


def config_for(job: Description) -> Config | None:
    """The configuration with a function that trains the job's model."""
    wanted = {**dict(job.model), "name": ""}
    return next((one for one in CONFIGS if one.name and {**dict(one.spec()), "name": ""} == wanted), None)
