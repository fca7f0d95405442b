"""What the dimensions of a recorded transformer's tensors are: tokens, hidden size, features inside a layer.

Told from the matrix products alone: each linear layer's has the tokens, the hidden size and one dimension
more, that of features between two linear layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from math import prod

from simcore.errors import InputError
from simcore.records import dataclass

Shape = tuple[int, ...]
_MOST = 0.8  # of the products' work that tokens and hidden size must be part of


@dataclass(frozen=True)
class RecordedSizes:
    """Sizes as recorded on one rank: ``tokens`` of a microbatch, ``hidden``, and ``inner`` ones of layers.

    ``twin``: features inside a layer are as many as the hidden size (an MLP of 4 x hidden over 4 ranks).
    """

    tokens: int
    hidden: int
    inner: frozenset[int]
    twin: bool = False

    @property
    def all_inner(self) -> frozenset[int]:
        """Features inside layers, those included that the hidden size is a twin of."""
        return self.inner | {self.hidden} if self.twin else self.inner


@dataclass(frozen=True)
class Scales:
    """By how much dimensions grow; ``inner`` by size, ``heads`` for what works on each head.

    Of a twin, ``inner`` of the hidden size is what it grows by inside layers.
    """

    tokens: float = 1.0
    hidden: float = 1.0
    inner: dict[int, float] = field(default_factory=dict)
    heads: float = 1.0


def find_features(
    products: Iterable[tuple[Shape, Shape]], others: Iterable[Shape], hidden: int | None
) -> RecordedSizes:
    """From the operands of products and shapes of other tensors; ``hidden`` where the user says it.

    InputError when tokens and hidden size cannot be told.
    """
    work: Counter[frozenset[int]] = Counter()
    twice: set[int] = set()
    for left, right in products:
        sizes = (prod(left[:-1]), left[-1], right[-1])
        work[frozenset(sizes)] += prod(sizes)
        twice |= {size for size in sizes if sizes.count(size) > 1}
    total = sum(work.values())
    if not total:
        raise InputError("no matrix product has recorded shapes (record_shapes=True): sizes are not known")
    share: Counter[int] = Counter()
    for sizes_of, amount in work.items():
        for size in sizes_of:
            share[size] += amount
    both = [size for size, amount in share.items() if amount >= _MOST * total]
    if hidden is not None and hidden not in share:
        raise InputError(f"no matrix product has a dimension of {hidden}; there are {_shown(share)}")
    if len(both) != 2:
        raise InputError(
            "tokens and hidden size cannot be told: two sizes must be part of"
            f" {_MOST:.0%} of the products' work, here {len(both)} are; sizes: {_shown(share)}"
        )
    votes: Counter[int] = Counter()
    for shape in others:
        if len(shape) >= 2 and shape[-1] in both and prod(shape[:-1]) in both:
            votes[shape[-1]] += 1
    if hidden is None and not votes:
        raise InputError(f"which of {both[0]} and {both[1]} is the hidden size is not recorded")
    chosen = hidden if hidden is not None else votes.most_common(1)[0][0]
    if chosen not in both:
        raise InputError(f"{chosen} is not the hidden size of the recording; {both[0]} or {both[1]} is")
    tokens = both[0] if chosen == both[1] else both[1]
    if tokens in twice:
        raise InputError(f"tokens and features of a layer are both {tokens}: which is which is not recorded")
    inner = frozenset(size for found in work if len(found) == 3 for size in found) - {tokens, chosen}
    return RecordedSizes(tokens, chosen, inner, twin=frozenset((tokens, chosen)) in work and chosen in twice)


def _shown(share: Counter[int]) -> str:
    return ", ".join(str(size) for size, _ in share.most_common(8))


def scaled(shape: Shape, features: RecordedSizes, scales: Scales, *, twin: bool = False) -> Shape:
    """``shape`` with its dimensions grown; what is neither tokens nor feature stays.

    ``twin``: a last dimension of the hidden size is one inside a layer.
    """
    if twin and len(shape) > 1 and shape[-1] == features.hidden:
        outer = scaled(shape[:-1], features, scales)
        return (*outer, round(shape[-1] * scales.inner.get(shape[-1], 1.0)))
    sizes = list(shape)
    at = 0
    # Leading dimensions that are the tokens together: the longest one grows.
    for count in range(len(shape), 0, -1):
        if prod(shape[:count]) == features.tokens:
            place = (
                max(range(count), key=lambda i: (shape[i] != 1, -i)) if scales.tokens == 1.0 else count - 1
            )
            sizes[place] = round(sizes[place] * scales.tokens)
            at = count
            break
    rest = shape[at:]
    if len(rest) > 1 and prod(rest) in features.inner | {features.hidden}:
        sizes[at] = round(sizes[at] * _factor(prod(rest), features, scales))
        return tuple(sizes)
    for place in range(at, len(shape)):
        factor = scales.tokens if shape[place] == features.tokens else _factor(shape[place], features, scales)
        sizes[place] = round(sizes[place] * factor)
    return tuple(sizes)


def _factor(size: int, features: RecordedSizes, scales: Scales) -> float:
    return scales.hidden if size == features.hidden else scales.inner.get(size, 1.0)
