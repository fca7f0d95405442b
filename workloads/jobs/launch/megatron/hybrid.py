"""Megatron-LM's flags of layers by a pattern (megatron/core/models/hybrid/hybrid_layer_allocation.py).

A letter a layer, "|" between (virtual) pipeline stages, "/" before layers that predict a further token.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, Final

from simcore.records import dataclass
from workloads.jobs.complete import Description
from workloads.jobs.launch.options import Option, Said, Settings, Words

_PATTERN: Final = "--hybrid-layer-pattern"
#: What it was called until 2026.
_OVERRIDE: Final = "--hybrid-override-pattern"
_SHARED: Final = "--mtp-use-repeated-layer"
_OF_MTP: Final = "--mtp-hybrid-override-pattern"
_LONGEST: Final = 1 << 14
_SPEC: Final = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")

#: Flags of state-space layers, the keys that they stand for, and what Megatron-LM takes unasked.
_MAMBA: Final = {
    "head_size": ("--mamba-head-dim", 64), "state": ("--mamba-state-dim", 128),
    "groups": ("--mamba-num-groups", 8), "chunk": ("--mamba-chunk-size", 128),
}  # fmt: skip


#: The same of delta-rule layers (TransformerConfig of megatron/core/transformer/transformer_config.py).
_DELTA: Final = {
    "heads": ("--linear-num-value-heads", 32), "key_heads": ("--linear-num-key-heads", 16),
    "key_size": ("--linear-key-head-dim", 128), "value_size": ("--linear-value-head-dim", 128),
    "conv": ("--linear-conv-kernel-dim", 4),
}  # fmt: skip
_VARIANT: Final = ("--experimental-attention-variant", "--linear-attention-type")
_EACH: Final = "--linear-attention-freq"


@dataclass(frozen=True)
class LayerPattern:
    """Letters of each pipeline stage, and of each layer that predicts a further token."""

    stages: tuple[str, ...] = ()
    further: tuple[str, ...] = ()

    @property
    def layers(self) -> str:
        """Letters of all layers."""
        return "".join(self.stages)


def pattern_of(said: Said) -> LayerPattern:
    """The pattern that was given; an empty one where there is none."""
    name = _PATTERN if said.has(_PATTERN) else _OVERRIDE
    text = said.text(name, "")[:_LONGEST]
    if not text:
        return LayerPattern()
    main, *further = text.split("/")
    if not main or any(one != further[0] for one in further):
        raise said.wrong(name, "layers, then the same letters for each further token, such as M*M-/*-/*-")
    if not further and said.has(_OF_MTP):
        further = [said.text(_OF_MTP, "")] * said.number("--mtp-num-layers", 0)
    return LayerPattern(tuple(main.split("|")), tuple(further))


def layers_of(said: Said) -> int:
    """Layers as the pattern has them, or else the flag."""
    found = pattern_of(said)
    if not found.stages:
        return said.needed("--num-layers")
    count = said.number("--num-layers", len(found.layers))
    if count != len(found.layers):
        raise said.wrong("--num-layers", f"the pattern has {len(found.layers)} layers")
    return count


def _read(said: Said) -> Settings:
    found = pattern_of(said)
    settings: dict[str, Any] = {
        "model.layers": layers_of(said),
        "model.mtp_layers": len(found.further) or said.number("--mtp-num-layers", 0),
    }
    if any(said.has(name) for name in (*_VARIANT, _EACH)):
        return {**settings, **_read_variant(said, settings["model.layers"])}
    if not found.stages:
        given = [name for name in ("--hybrid-attention-ratio", "--hybrid-mlp-ratio", "--is-hybrid-model")
                 if said.has(name)]  # fmt: skip
        if given:
            raise said.wrong(given[0], f"which layers there are is not said; give {_PATTERN}")
        return settings
    settings |= {
        "model.layer_pattern": found.layers, "model.mtp_pattern": "".join(found.further[:1]),
        "model.mtp_shared": bool(found.further) and said.has(_SHARED),
    }  # fmt: skip
    if "M" in found.layers:
        sizes = {key: said.number(name, usual) for key, (name, usual) in _MAMBA.items()}
        usual = 2 * said.needed("--hidden-size") // max(1, sizes["head_size"])
        sizes["heads"] = said.number("--mamba-num-heads", usual)
        settings |= {f"model.mamba.{key}": size for key, size in sizes.items()}
    return {**settings, **(_delta(said) if "G" in found.layers else {})}


def _delta(said: Said) -> Settings:
    return {f"model.delta.{key}": said.number(name, usual) for key, (name, usual) in _DELTA.items()}


def _read_variant(said: Said, layers: int) -> Settings:
    """GPT whose layers but each n-th have the delta rule in place of attention."""
    name = next((name for name in _VARIANT if said.has(name)), _VARIANT[0])
    if said.text(name, "") != "gated_delta_net":
        raise said.wrong(name, "only gated_delta_net is described")
    every, behind = said.number(_EACH, None), "E" if said.has("--num-experts") else "-"
    if not every:
        raise said.wrong(_EACH, "give a whole number, such as 4: three layers of four have the delta rule")
    if said.text("--moe-layer-freq", "1") != "1":
        raise said.wrong("--moe-layer-freq", "beside the delta rule all layers have experts, or none")
    kinds = ("G" if (k + 1) % every else "*" for k in range(layers))
    return {"model.layer_pattern": "".join(f"{kind}{behind}" for kind in kinds), **_delta(said)}


def _write(job: Description) -> Words:
    model, p = job.transformer, job.parallel
    found: dict[str, tuple[str, ...]] = {"--num-layers": (str(model.layers),)}
    if model.mtp_layers:
        found["--mtp-num-layers"] = (str(model.mtp_layers),)
    if not model.layer_pattern:
        return found
    stages = [model.layer_pattern]
    if p.pp > 1:
        counts = p.stage_layers or [model.layers // (p.pp * p.virtual_stages)] * p.pp * p.virtual_stages
        ends = accumulate(counts, initial=0)
        stages = [model.layer_pattern[first:last] for first, last in pairwise(ends)]
    text = "/".join(("|".join(stages), *[model.mtp_pattern] * model.mtp_layers))
    found |= {"--is-hybrid-model": (), "--spec": _SPEC, _PATTERN: (text,)}
    if model.mtp_shared:
        found[_SHARED] = ()
    if model.delta is not None:
        found |= {name: (str(getattr(model.delta, key)),) for key, (name, _) in _DELTA.items()}
    if model.mamba is not None:
        found["--mamba-num-heads"] = (str(model.mamba.heads),)
        for key, (name, usual) in _MAMBA.items():
            if getattr(model.mamba, key) != usual:
                found[name] = (str(getattr(model.mamba, key)),)
    return found


#: Which layers a model has.
LAYERS: Final = Option(
    (
        "--num-layers", "--mtp-num-layers", _PATTERN, _OVERRIDE, "--is-hybrid-model",
        "--hybrid-attention-ratio", "--hybrid-mlp-ratio", _SHARED, _OF_MTP, "--mamba-num-heads",
        *(name for name, _ in _MAMBA.values()), *(name for name, _ in _DELTA.values()), *_VARIANT, _EACH,
    ),
    _read, _write,
)  # fmt: skip
