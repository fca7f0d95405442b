"""Blocks of recorded products that have a tile, of which a grid of whole strips has more."""

import pytest

from simcore.apps.replay.tiles import recorded_tiles, tiles_of, unrecorded_launch
from simcore.hardware import load_cluster
from tests.imports.traces import framework_call, launched, write
from workloads.imports import import_traces

NAME = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_{}_nn_align4>(int)"


@pytest.mark.parametrize(
    "tile, blocks, m, n, batch, tiles",
    [
        # As recorded on A100: 16 rows, 1320 / 128 = 10.3 to 11 columns, launched as two strips of 8.
        ("128x64_16x6", 256, 1024, 1320, 1, 16 * 11),
        ("64x64_16x6", 288, 192, 1320, 1, 3 * 21 * 4),  # 24 columns are launched, in 4 slices of k
        ("256x128_16x3", 640, 1024, 19410, 1, 8 * 76),
        ("128x64_16x6", 64, 1024, 512, 1, 64),  # 4 columns: a strip of 4
        ("128x64_16x6", 128, 512, 512, 3, 128),  # no such grid of 3 products
        ("128x64_16x6", 16, 1024, 1320, 1, 16),  # less than one slice
    ],
)  # fmt: skip
def test_whole_strips_are_launched(tile, blocks, m, n, batch, tiles):
    assert tiles_of(NAME.format(tile), blocks, m, n, batch) == tiles


def test_other_kernels_have_a_tile_in_each_block():
    assert tiles_of("ampere_sgemm_128x64_nn", 256, 1024, 1320, 1) == 256


def test_tiles_of_a_recording(tmp_path):
    tile, grid = "128x64_16x6", {"grid": [256, 1, 1], "block": [128, 1, 1]}
    shapes = {"Input Dims": [[1024, 192], [192, 1320]], "Input type": ["float", "float"]}
    events = [
        framework_call("aten::mm", 0, 6) | {"args": shapes},
        *launched(NAME.format(tile), 2, 20, 30, corr=1, **grid),
        *launched(NAME.format(tile), 102, 120, 30, corr=2, **grid),  # of no known shape
    ]
    job = import_traces([write(tmp_path / "t.json", events)])
    assert recorded_tiles(job.ranks[0].recorded).tolist() == [176, 256]


@pytest.mark.parametrize(
    "cluster, name, time_us, written_bytes, blocks",
    [
        # [8192, 3072] bf16 behind 4 MiB of scratch: 64 x 12 tiles of 128 x 256.
        ("a100-8", "__cublas$gemm custom-call.2", 162, 8192 * 3072 * 2 + (4 << 20), 768),
        ("h100-8", "__cublas$lt$matmul custom-call.2", 99, 8192 * 3072 * 2 + (32 << 20), 768),
        # Nothing but a time: a wave of H100's is 2 * 128 * 256 * 2048 * 132 / (989.4e12 * 0.78) = 23.0 us.
        ("h100-8", "custom-call.38.0", 32, 0, 128),
        ("h100-8", "custom-call.36.0", 225, 0, 10 * 128),
        ("h100-8", "gemm_fusion_dot.467", 48, 12_582_912, 0),
    ],
)  # fmt: skip
def test_products_of_a_library_without_a_grid(cluster, name, time_us, written_bytes, blocks):
    gpu = load_cluster(cluster, {}).gpu
    found = unrecorded_launch(name, "gemm/conv", time_us * 1_000_000, written_bytes, gpu)
    assert found[:2] == (blocks, 1 if blocks else 0)
    # Who knows nothing but a time says nothing of a block, unless partners are lost to it.
    assert (found[2] is None) == (not written_bytes or not blocks)
    assert unrecorded_launch(name, "attention", time_us * 1_000_000, written_bytes, gpu) == (0, 0, None)
