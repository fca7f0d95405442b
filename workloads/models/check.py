"""Whether a model's dimensions fit each other.  Each refusal names the rule and the nearest valid value."""

from __future__ import annotations

from math import isqrt

from simcore.errors import InputError
from workloads.models.block import BLOCKS
from workloads.models.family import FAMILIES
from workloads.models.spec import ModelSpec


def check_model(model: ModelSpec, where: str = "model") -> None:
    """InputError unless the dimensions fit each other."""
    if not model.head_size and model.mla is None:
        other = f"heads={_divisors(model.hidden, model.heads)}, or give head_size"
        multiple(f"{where}.hidden", model.hidden, "heads", model.heads, other)
    other = f"kv_heads={_divisors(model.heads, model.num_kv_heads)}"
    multiple(f"{where}.heads", model.heads, "kv_heads", model.num_kv_heads, other)
    for block in BLOCKS.values():
        block.check(model, where)
    _check_family(model, where)


def _check_family(model: ModelSpec, where: str) -> None:
    family = FAMILIES[model.family]
    family.check(model, where)
    if family.has_tokens and not model.vocab:
        raise InputError(f"{where}.vocab: missing; family {model.family!r} needs it")
    if family.has_decoder != (model.decoder_layers > 0):
        needs = "needs" if family.has_decoder else "has no"
        raise InputError(f"{where}.decoder_layers: family {model.family!r} {needs} decoder layers")


def multiple(what: str, value: int, of: str, divisor: int, otherwise: str = "") -> None:
    """InputError unless ``value`` is a multiple of ``divisor``, with the nearest that are."""
    if value % divisor:
        lower = value // divisor * divisor
        near = f"{lower} or {lower + divisor}" if lower else f"{divisor}"
        raise InputError(
            f"{what}: {value} is no multiple of {of} {divisor}; nearest: {near}"
            f"{', or ' + otherwise if otherwise else ''}"
        )


def _divisors(value: int, near: int) -> str:
    """Divisors of ``value`` on both sides of ``near``."""
    lower, upper = nearest_divisors(value, near)
    return f"{lower}" if upper in (None, lower) else f"{lower} or {upper}"


def nearest_divisors(value: int, near: int) -> tuple[int, int | None]:
    """The largest divisor of ``value`` up to ``near`` and the least from it on, both at least 1."""
    small = [d for d in range(1, isqrt(value) + 1) if value % d == 0]
    every = [*small, *(value // d for d in reversed(small))]
    return max(d for d in every if d <= max(near, 1)), next((d for d in every if d >= near), None)
