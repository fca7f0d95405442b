"""How the caching allocator is told to behave: the words of ``PYTORCH_ALLOC_CONF``, as PyTorch reads them.

Sources: c10/core/AllocatorConfig.h and .cpp for words, defaults and limits; ``round_size`` and
``roundup_power2_next_division`` of c10/cuda/CUDACachingAllocator.cpp for rounding.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError, nearest
from simcore.records import dataclass

MIB: Final = 1 << 20
#: All sizes are whole multiples of it (kMinBlockSize).
BLOCK_BYTES: Final = 512
#: The largest block of the small pool (kSmallSize), and the segments of that pool (kSmallBuffer).
SMALL_BYTES: Final = MIB
SMALL_SEGMENT_BYTES: Final = 2 * MIB
#: Below it, large requests share segments of ``large_segment_bytes`` (kMinLargeAlloc).
OWN_SEGMENT_BYTES: Final = 10 * MIB
#: Larger segments are whole multiples of it (kRoundLarge).
SEGMENT_STEP_BYTES: Final = 2 * MIB
#: Nothing larger is ever asked of the device (one exabyte, NativeCachingAllocator::allocate).
MOST_BYTES: Final = 1152921504606846976

#: Intervals of sizes that may be rounded unlike, [1, 2) MiB the first (kRoundUpPowerOfTwoIntervals).
_INTERVALS: Final = 16
_FIRST_INTERVAL: Final = 20  # log2 of 1 MiB
#: Words that decide nothing about what the device holds.
_WITHOUT_EFFECT: Final = (
    "pinned_max_cached_size_mb", "pinned_max_round_threshold_mb", "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb", "pinned_use_background_threads", "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
)  # fmt: skip


Size = TypeVar("Size", int, npt.NDArray[np.int64])


def whole_blocks(num_bytes: Size) -> Size:
    """Bytes of the blocks that storages of ``num_bytes`` take."""
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True)
class AllocatorSettings:
    """What ``PYTORCH_ALLOC_CONF`` says; defaults are PyTorch's.

    ``max_split_bytes`` (0: any): larger blocks are not split.  ``roundup_divisions``: of each interval
    between powers of two from 1 MiB on, into how many steps sizes are rounded up (0: none).
    ``memory_fraction``: ``torch.cuda.set_per_process_memory_fraction``, without which nothing is collected as
    garbage, whatever the threshold (0: never called).
    """

    max_split_bytes: int = 0
    max_non_split_rounding_bytes: int = 20 * MIB
    large_segment_bytes: int = 20 * MIB
    roundup_divisions: tuple[int, ...] = (0,) * _INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    memory_fraction: float = 0.0

    @classmethod
    def from_text(cls, text: str) -> AllocatorSettings:
        """Read ``"max_split_size_mb:128,expandable_segments:True"``.

        Errors: InputError for a word that is none, with the nearest one, and for values that PyTorch refuses.
        """
        found: dict[str, Any] = {}
        for word, value in _pairs(text):
            if word in _WITHOUT_EFFECT:
                continue
            if word == "backend" and value == "native":
                continue
            if word == "backend":
                raise InputError(f"backend:{value}: only PyTorch's own allocator is modelled, backend:native")
            if word not in _READERS:
                raise InputError(f"no setting of the caching allocator: {word!r}{nearest(word, _READERS)}")
            field, read = _READERS[word]
            found[field] = read(word, value)
        made = cls(**found)
        for word in ("max_split_size_mb", "max_non_split_rounding_mb"):
            given = found.get(_READERS[word][0], made.large_segment_bytes)
            if given < made.large_segment_bytes:
                least = made.large_segment_bytes // MIB
                raise InputError(f"{word}:{given // MIB} is below large_segment_size_mb; nearest: {least}")
        return made

    def rounded(self, num_bytes: int) -> int:
        """Bytes of the block that a request of ``num_bytes`` asks for."""
        if num_bytes < BLOCK_BYTES:
            return BLOCK_BYTES
        interval = min(max(num_bytes.bit_length() - 1 - _FIRST_INTERVAL, 0), _INTERVALS - 1)
        divisions = self.roundup_divisions[interval]
        if divisions > 1 and num_bytes > BLOCK_BYTES * divisions:
            floor = 1 << (num_bytes.bit_length() - 1)
            step = floor >> (divisions.bit_length() - 1)
            return -(-num_bytes // step) * step
        return whole_blocks(num_bytes)

    def segment_bytes(self, size: int) -> int:
        """Bytes that the device is asked for where no block of ``size`` is free."""
        if size <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < OWN_SEGMENT_BYTES:
            return self.large_segment_bytes
        return -(-size // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES


def _pairs(text: str) -> list[tuple[str, str]]:
    """``word:value`` parts between commas; lists in brackets stay whole."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        elif not letter.isspace():
            parts[-1] += letter
    found = []
    for part in filter(None, parts):
        word, colon, value = part.partition(":")
        if not colon or not value or depth:
            raise InputError(
                f"settings of the caching allocator are word:value, separated by commas: {part!r}"
            )
        found.append((word, value))
    return found


def _number(word: str, text: str, least: float, most: float = float("inf")) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{word}:{text} is no number") from None
    if not least <= value <= most:
        raise InputError(f"{word}:{text} must be at least {least:g}{f' and at most {most:g}' * (most < 1e9)}")
    return value


def _mib(word: str, text: str) -> int:
    return int(_number(word, text, OWN_SEGMENT_BYTES // MIB)) * MIB


def _share(word: str, text: str) -> float:
    return _number(word, text, 1e-9, 1 - 1e-9)


def _flag(word: str, text: str) -> bool:
    if text not in ("True", "False"):
        raise InputError(f"{word}:{text} must be True or False{nearest(text, ('True', 'False'))}")
    return text == "True"


def _divisions(word: str, text: str) -> tuple[int, ...]:
    """``8`` for all sizes, or ``[64:8,256:4,>:1]``: from which MiB on how many (``>``: beyond the last)."""
    if not text.startswith("["):
        return (_power_of_two(word, text),) * _INTERVALS
    found, last, first = [0] * _INTERVALS, 0, True
    for boundary, value in _pairs(text.strip("[]")):
        divisions = _power_of_two(word, value) if value != "0" else 0
        if boundary == ">":
            found[last + 1 :] = [divisions] * (_INTERVALS - last - 1)
            continue
        last = min(_power_of_two(word, boundary).bit_length() - 1, _INTERVALS - 1)
        if first:
            found[:last] = [divisions] * last
        found[last], first = divisions, False
    return tuple(found)


def _power_of_two(word: str, text: str) -> int:
    value = int(_number(word, text, 1))
    if value & (value - 1):
        raise InputError(f"{word}: {text} is no power of two; nearest: {1 << (value.bit_length() - 1)}")
    return value


_READERS: Final = {
    "max_split_size_mb": ("max_split_bytes", _mib),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mib),
    "large_segment_size_mb": ("large_segment_bytes", _mib),
    "roundup_power2_divisions": ("roundup_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _share),
    "expandable_segments": ("expandable_segments", _flag),
    "per_process_memory_fraction": ("memory_fraction", _share),
}
