"""Whether a model's dimensions fit each other.  Each refusal names the rule and the nearest valid value."""

from __future__ import annotations

from simcore.errors import InputError
from workloads.models.spec import ModelSpec


def check_model(model: ModelSpec, where: str = "model") -> None:
    """InputError unless the dimensions fit each other."""
    if not model.head_size:
        other = f"heads={_divisors(model.hidden, model.heads)}, or give head_size"
        _multiple(f"{where}.hidden", model.hidden, "heads", model.heads, other)
    other = f"kv_heads={_divisors(model.heads, model.num_kv_heads)}"
    _multiple(f"{where}.heads", model.heads, "kv_heads", model.num_kv_heads, other)
    if model.positions == "rotary" and model.mla is None:
        _multiple(f"{where}.head_size", model.size_per_head, "a pair of", 2)
    _check_experts(model, where)
    _check_family(model, where)


def _check_experts(model: ModelSpec, where: str) -> None:
    moe = model.moe
    if moe is None:
        return
    if moe.top_k > moe.num_experts:
        raise InputError(
            f"{where}.moe.top_k: {moe.top_k} of {moe.num_experts} experts; nearest: {moe.num_experts}"
        )
    if moe.first_layer >= model.layers:
        raise InputError(
            f"{where}.moe.first_layer: {moe.first_layer} of {model.layers} layers, none has experts; nearest:"
            f" {model.layers - 1}"
        )
    groups, chosen = moe.num_groups, moe.top_groups
    if groups:
        _multiple(f"{where}.moe.num_experts", moe.num_experts, "num_groups", groups)
        least = -(-moe.top_k * groups // moe.num_experts)
        if not least <= chosen <= groups:
            near = min(max(chosen, least), groups)
            raise InputError(
                f"{where}.moe.top_groups: {moe.top_k} experts from {chosen} of {groups} groups of"
                f" {moe.num_experts // groups}; nearest: {near}"
            )
    elif chosen:
        raise InputError(f"{where}.moe.top_groups: {chosen} without num_groups; nearest: 0")
    if moe.load > moe.num_experts / moe.top_k:
        raise InputError(
            f"{where}.moe.load: an expert gets each token at most once, {moe.num_experts / moe.top_k:g} times"
            f" the mean, not {moe.load:g}; nearest: {moe.num_experts / moe.top_k:g}"
        )


def _check_family(model: ModelSpec, where: str) -> None:
    if model.family == "vit":
        for key in ("image_size", "patch_size"):
            if not getattr(model, key):
                raise InputError(f"{where}.{key}: missing; a ViT needs it")
        _multiple(f"{where}.image_size", model.image_size, "patch_size", model.patch_size)
    elif not model.vocab:
        raise InputError(f"{where}.vocab: missing; family {model.family!r} needs it")
    if (model.family == "t5") != (model.decoder_layers > 0):
        needs = "needs" if model.family == "t5" else "has no"
        raise InputError(f"{where}.decoder_layers: family {model.family!r} {needs} decoder layers")


def _multiple(what: str, value: int, of: str, divisor: int, otherwise: str = "") -> None:
    if value % divisor:
        lower = value // divisor * divisor
        near = f"{lower} or {lower + divisor}" if lower else f"{divisor}"
        raise InputError(
            f"{what}: {value} is no multiple of {of} {divisor}; nearest: {near}"
            f"{', or ' + otherwise if otherwise else ''}"
        )


def _divisors(value: int, near: int) -> str:
    """Divisors of ``value`` on both sides of ``near``."""
    lower = next(d for d in range(min(near, value), 0, -1) if value % d == 0)
    upper = next((d for d in range(near, value + 1) if value % d == 0), lower)
    return f"{lower}" if upper == lower else f"{lower} or {upper}"
