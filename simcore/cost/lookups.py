"""Lookups in embedding tables, their gradients, and the sorting of keys.

Note [Rows of tables].  A lookup reads a row of a table at random: whole sectors of HBM, at less than a
stream's rate.  Of rows that are looked up more than once only the first reading comes from HBM where L2 keeps
them: all of a small table, and the popular ones of a large one.  The k-th most popular of R rows is looked
up in proportion to ``k ** -zipf`` (0: all alike), which ``.zipf=`` at the end of a kernel's name says; L2
keeps the most popular rows that fit beside what streams through it.

A gradient is the sum over all lookups of a row: keys are sorted (``key_sort``), then each row that was looked
up is read with its optimizer's state, changed and written once, while the gradients of its lookups are read
in turn.  ``.atomic`` adds each lookup's gradient into the row where it lies instead: popular rows are met in
L2, which adds at the rate of its slices.
``.hugectr``: HugeCTR's, whose rows wait for lists that say where they lie, in L2 or not; its sums are
written for an optimizer that reads them.
``.fbgemm``: FBGEMM's kernels.  A warp takes clocks for every row that it adds and every bag that it writes,
wherever rows come from: a table that L2 holds is read no faster.  An update has a block or a warp for each
row, behind kernels that make places of keys and find runs of equal ones; others share lookups out evenly.
Rows in the host's memory (``.uvm=SHARE`` in the name: the share of rows, the popular ones, that HBM caches)
are fetched before they are looked up, each once, at the rate of copies from the host, and go back when the
update has changed them: a cache that is full puts out as many rows as it takes in (FBGEMM, uvm_caching).
Shapes: weights ``[rows, dim]`` (``[tables, rows, dim]``: as many alike) of each table, then as many lists of
keys ``[lookups]``, then what is read beside them.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Final, NamedTuple

from simcore.cost.kernel import Context, KernelShape, Work, formula, numel
from simcore.cost.memory_bound import streaming_work, tensor_bytes, traffic_class
from simcore.popularity import distinct_rows, share_of_first

#: Bytes that HBM hands out at once of a row (two sectors: L2 fetches sectors by twos on A100 and H100 unless
#: told otherwise, CUDA programming guide, cudaLimitMaxL2FetchGranularity).
_BURST: Final = 64
#: Share of usable bandwidth that rows read at random reach: FBGEMM's table batched embeddings read 128
#: columns in fp32 at 1.1 to 1.2 TB/s of 1.555 on A100 (arXiv 2101.05615; the stream itself reaches 0.9).
_RANDOM_SHARE: Final = 0.82
#: The same of kernels that share lookups out evenly, rows of 16 bits among them (MLPerf's runs, of which it
#: moves the mean error by 0.3 points between 0.5 and 0.82).
_EVEN_SHARE: Final = 0.65
#: Share of L2 that rows may stay in while others stream through.
_KEPT_SHARE: Final = 0.5
#: Share of usable bandwidth at which gradients of lookups are read row by row, and clocks of an SM for a row
#: of up to 128 columns that is added or handed out: FBGEMM's kernels on A100 40 GB, 15.8 million lookups in
#: 122 tables, 7.2 and 2.54 ms (hardware_profiles/measured/fbgemm-a100-40).
_GRADIENT_SHARE: Final = 0.55
_ROW_CLOCKS: Final = 24.0
#: Clocks of an SM that a row of 128 columns takes HugeCTR's kernels: a warp (a block of four in the hybrid
#: embedding, 16 to an SM) reads where a key stands, the key, where its row lies, and the row, one after the
#: other, 262 clocks each from L2 and 466 from HBM (A100, arXiv 2402.13499): 78 of 16 blocks.  Fitted to
#: MLPerf's 73 runs of DLRM and DCN-v2 with NVLink, of 65 to 85 in steps of 5.
_HUGECTR_CLOCKS: Final = 75.0
_ROW_COLUMNS: Final = 128
#: Bits of a key that one pass of a radix sort takes, and bytes of its place (CUB onesweep: each pass reads
#: and writes both; one more reading counts digits).
_RADIX_BITS: Final = 8
_PLACE: Final = 4
_KEY: Final = 8
#: Around FBGEMM's sort, bytes of each key: places made (read 8, write 12), runs of equal keys found (a fill,
#: a reading, a scan, a search: 4 + 8 + 8 + 4), and kernels that it takes.  Share of usable bandwidth of all
#: of it and of the sort, and seconds of its shortest pass (a look back from block to block): the same trace.
_AROUND: Final = 44
_FBGEMM_KERNELS: Final = 11
_SORT_SHARE: Final = 0.69
#: The same around HugeCTR's: a flag where a key differs from the one before, their sums, unique keys and
#: where each goes (HugeCTR/embedding/operators/index_calculation.cu: 4 + 4, 4 + 4, 8 + 4, 4).
_UNIQUE: Final = 32
_UNIQUE_KERNELS: Final = 5
_PASS_S: Final = 12e-6
#: fp32 additions that L2 does per clock and SM's share of its slices: one sector per slice and two clocks
#: (measured for atomicAdd on A100: 2.4 of 5.1 TB/s).
_ATOMIC_SHARE: Final = 0.45
_FBGEMM: Final = ".fbgemm"
_HUGECTR: Final = ".hugectr"
_ZIPF: Final = re.compile(r"\.zipf=(\d+(?:\.\d+)?)")


_UVM: Final = re.compile(r"\.uvm=(\d+(?:\.\d+)?)")


class Looked(NamedTuple):
    """A table as a kernel sees it."""

    tables: int
    rows: int
    dim: int
    lookups: int


def tables_of(kernel: KernelShape) -> list[Looked]:
    """The tables that a kernel's shapes tell, each with its lookups."""
    weights = [shape for shape in kernel.in_shapes if len(shape) >= 2]
    keys = [shape for shape in kernel.in_shapes if len(shape) == 1]
    found = []
    for weight, key in zip(weights, keys, strict=False):
        *several, rows, dim = weight
        found.append(Looked(max(1, math.prod(several)), rows, dim, key[0]))
    return found


def zipf_of(name: str) -> float:
    """The exponent that a kernel's name tells; 0 where it tells none."""
    found = _ZIPF.search(name)
    return float(found[1]) if found else 0.0


def _from_host_s(name: str, tables: list[Looked], row_bytes: list[int], context: Context) -> float:
    """Seconds that rows take between the host's memory and HBM, one way; see Note [Rows of tables]."""
    found = _UVM.search(name)
    if found is None:
        return 0.0
    cached, zipf, moved = float(found[1]), zipf_of(name), 0.0
    for one, size in zip(tables, row_bytes, strict=True):
        each = one.lookups / one.tables
        missed = each * (1 - share_of_first(cached * one.rows, one.rows, zipf))
        moved += size * one.tables * min(missed, distinct_rows(each, one.rows, zipf))
    rate = context.gpu.host_bytes_per_s or context.parameters.memory.pcie_bytes_per_s
    return moved / rate


def _sectors(num_bytes: int) -> int:
    return -(-num_bytes // _BURST) * _BURST


def _read_of_rows(tables: list[Looked], zipf: float, size: int, context: Context) -> tuple[float, float]:
    """(bytes from HBM, bytes through L2) of all lookups."""
    cold = through = 0.0
    room = _KEPT_SHARE * context.gpu.l2_bytes
    total = sum(one.lookups for one in tables) or 1
    for one in tables:
        row, count = _sectors(one.dim * size), one.tables * one.rows
        kept = room * one.lookups / total / row
        each = one.lookups / one.tables
        missed = one.lookups * (1 - share_of_first(kept / one.tables, one.rows, zipf))
        first = one.tables * distinct_rows(each, one.rows, zipf)
        fits = count <= kept
        cold += row * (first if fits else max(first, missed))
        through += row * one.lookups
    return cold, through


def _waits(name: str, tables: list[Looked]) -> float:
    """Clocks of an SM that HugeCTR's rows take, narrow ones several to a warp; none of other kernels."""
    if _HUGECTR not in name:
        return 0.0
    return _HUGECTR_CLOCKS * sum(one.lookups * one.dim / _ROW_COLUMNS for one in tables)


@formula("lookup_fwd")
def lookup(kernel: KernelShape, context: Context) -> Work:
    """See Note [Rows of tables]."""
    tables = tables_of(kernel)
    p = traffic_class("embedding_fwd", context)
    if not tables:
        return streaming_work(sum(tensor_bytes(kernel)), 1, p, context)
    cold, through = _read_of_rows(tables, zipf_of(kernel.name), kernel.element_bytes, context)
    _, written = tensor_bytes(kernel)
    count = sum(one.lookups for one in tables)
    sizes = [_sectors(one.dim * kernel.element_bytes) for one in tables]
    bags = written / kernel.element_bytes / (sum(one.dim * one.lookups for one in tables) / (count or 1) or 1)
    wide = sum(one.lookups * -(-one.dim // _ROW_COLUMNS) for one in tables) / (count or 1)
    clocks = _ROW_CLOCKS * wide * (count + bags) if _FBGEMM in kernel.name else _waits(kernel.name, tables)
    issued = clocks / (context.gpu.num_sms * context.gpu.boost_clock_hz)
    host_s = _from_host_s(kernel.name, tables, sizes, context)
    return _random(kernel.name, cold, through, written + _KEY * count, host_s, context, issued)


@formula("lookup_bwd")
def update(kernel: KernelShape, context: Context) -> Work:
    """The sums of gradients into rows and their optimizer; see Note [Rows of tables].

    What is read beside weights and keys is the gradient of the output, in 16 bits where the name has
    ``.g16``; what is written tells, behind the weights, the optimizer's states of each table.
    """
    tables = tables_of(kernel)
    if not tables:
        return streaming_work(sum(tensor_bytes(kernel)), 1, traffic_class("embedding_bwd", context), context)
    zipf, size = zipf_of(kernel.name), kernel.element_bytes
    states = kernel.out_shapes[len(tables) :]
    gradient = kernel.in_shapes[2 * len(tables)] if len(kernel.in_shapes) > 2 * len(tables) else (0,)
    narrow = 2 if ".g16" in kernel.name else 4
    gradients = float(numel(gradient) * narrow)
    rows = again = changed = 0.0
    sizes = []
    for number, one in enumerate(tables):
        met = one.tables * distinct_rows(one.lookups / one.tables, one.rows, zipf)
        state = states[number] if number < len(states) else (0,)
        wide = _sectors(4 * state[-1]) if numel(state) else 0
        row = _sectors(one.dim * size)
        sizes.append(row + wide)
        if ".atomic" in kernel.name:
            rows += 2 * row * met
            again += row * one.lookups
        else:
            # HugeCTR's sums are written for an optimizer that reads them.
            apart = 2 * _sectors(4 * one.dim) if _HUGECTR in kernel.name else 0
            rows += (2 * (row + wide) + apart) * met
        changed += one.dim * narrow * one.lookups
    # Gradients of pooled rows are read for every lookup: from HBM once, then from L2 where they fit.
    fits = gradients <= _KEPT_SHARE * context.gpu.l2_bytes
    read = gradients if fits else max(gradients, changed)
    through = rows + changed + again / _ATOMIC_SHARE
    keys = _KEY * float(sum(one.lookups for one in tables))
    host_s = _from_host_s(kernel.name, tables, sizes, context)
    issued = _waits(kernel.name, tables) / (context.gpu.num_sms * context.gpu.boost_clock_hz)
    work = _random(kernel.name, rows, through, keys, host_s, context, issued)
    share = 1.0 if fits else _GRADIENT_SHARE if _FBGEMM in kernel.name else _EVEN_SHARE
    sums_s = read / (context.hbm_bytes_per_s * share)
    return replace(work, sm_s=work.sm_s + sums_s, hbm_bytes=work.hbm_bytes + read)


@formula("key_sort")
def sort(kernel: KernelShape, context: Context) -> Work:
    """Keys with their places, sorted in passes of a radix sort, each digit counted before; FBGEMM's runs."""
    keys = kernel.in_shapes[0][0] if kernel.in_shapes and kernel.in_shapes[0] else 0
    rows = kernel.in_shapes[1][0] if len(kernel.in_shapes) > 1 and kernel.in_shapes[1] else keys
    passes = max(1, -(-max(1, (rows - 1).bit_length()) // _RADIX_BITS))
    size = kernel.element_bytes
    around, beside = (_AROUND, _FBGEMM_KERNELS) if _FBGEMM in kernel.name else (_UNIQUE, _UNIQUE_KERNELS)
    moved = float(keys * (2 * (size + _PLACE) * passes + size + around))
    launches = 2 + beside + passes  # counts digits, adds counts up
    prologue_s = ((2 + beside) * context.parameters.memory.prologue_s + passes * _PASS_S) / launches
    return Work(moved / (context.hbm_bytes_per_s * _SORT_SHARE), moved, prologue_s, launches=launches)


def _random(
    name: str, cold: float, through: float, streamed: float, host_s: float, context: Context,
    issued_s: float = 0.0,
) -> Work:  # fmt: skip
    """Rows at random, and what streams beside them.

    ``host_s``: before, what the host's memory holds; ``issued_s``: instructions of all warps.
    """
    gpu, memory = context.gpu, context.parameters.memory
    share = _RANDOM_SHARE if _FBGEMM in name else _EVEN_SHARE
    usable = context.hbm_bytes_per_s
    sm_s = max(
        cold / (usable * share) + streamed / usable, (through + streamed) / gpu.l2_bytes_per_s, issued_s
    )
    return Work(sm_s + host_s, cold + streamed, 2 * memory.prologue_s)
