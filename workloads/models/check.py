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
    _check_pattern(model, where)
    for block in BLOCKS.values():
        block.check(model, where)
    _check_family(model, where)


def _check_pattern(model: ModelSpec, where: str) -> None:
    """Letters that are known, as many for each layer, with the dimensions of what they stand for."""
    sections = {block.symbol: block.key for block in BLOCKS.values() if block.key and block.symbol}
    known = sorted({block.symbol for block in BLOCKS.values() if block.symbol})
    for key, pattern in (("layer_pattern", model.layer_pattern), ("mtp_pattern", model.mtp_pattern)):
        wrong = next((letter for letter in pattern if letter not in known), None)
        if wrong is not None:
            raise InputError(f"{where}.{key}: {wrong!r} is no kind of layer; there are {' '.join(known)}")
        for letter in dict.fromkeys(pattern):
            section = sections.get(letter, "")
            if letter != "*" and section and getattr(model, section, None) is None:
                raise InputError(f"{where}.{section}: missing; {key} has layers {letter!r}")
    if model.mtp_pattern and not model.mtp_layers:
        raise InputError(f"{where}.mtp_pattern: model.mtp_layers is 0; nearest: mtp_layers=1")
    if not model.layer_pattern:
        lacking = [s for s, key in sections.items() if s in "MG" and getattr(model, key, None) is not None]
        if lacking:
            raise InputError(
                f"{where}.{sections[lacking[0]]}: needs a layer_pattern with {lacking[0]!r} in it"
            )
        return
    multiple(
        f"{where}.layer_pattern",
        len(model.layer_pattern),
        "layers",
        model.layers,
        "a letter for each block of each",
    )
    for index in range(model.layers):
        letters = model.letters(index)
        if len(set(letters)) < len(letters):
            raise InputError(f"{where}.layer_pattern: layer {index}, {letters!r}, has a block twice")
    for key in ("parallel_block", "decoder_layers"):
        if getattr(model, key):
            raise InputError(f"{where}.{key}: beside a pattern; its layers are one block after the other")


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
