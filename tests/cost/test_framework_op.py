"""Framework ops with recorded shapes as kernels."""

from __future__ import annotations

import json

import pytest

from simcore.cost import KernelShape
from simcore.cost.framework_op import kernel_of_op


def op(
    name: str, shapes: list[object], types: list[str], outs: list[object] | None = None
) -> KernelShape | None:
    return kernel_of_op(name, json.dumps(shapes), json.dumps(types), json.dumps(outs) if outs else None)


def known(*given: object, **more: object) -> KernelShape:
    found = op(*given, **more)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_broadcast_sum_reads_each_input_once_and_writes_the_larger_shape() -> None:
    kernel = known("aten::add", [[1024, 8192], [8192], []], ["c10::BFloat16", "c10::BFloat16", "Scalar"])
    assert kernel.op_class == "elementwise"
    assert kernel.out_shapes == ((1024, 8192),)
    assert kernel.bytes_read == 2 * (1024 * 8192 + 8192)
    assert kernel.bytes_written == 2 * 1024 * 8192


def test_an_embedding_reads_the_rows_that_it_gathers() -> None:
    kernel = known("aten::index_select", [[151936, 1024], [], [8944]], ["c10::BFloat16", "", "long int"])
    # 8,944 rows of 1,024 values of 2 bytes in and out, and as many 8-byte indices.
    assert kernel.bytes_read == 8944 * 1024 * 2 + 8944 * 8
    assert kernel.bytes_written == 8944 * 1024 * 2
    assert kernel.out_shapes == ((8944, 1024),)


def test_a_product_has_its_multiply_adds() -> None:
    kernel = known("aten::addmm", [[96], [1024, 512], [512, 96], [], []], ["float", "float", "float", "", ""])
    assert (kernel.op_class, kernel.flops) == ("gemm", 2 * 1024 * 512 * 96)
    linear = known("aten::linear", [[4, 7, 512], [96, 512]], ["float", "float"])
    assert linear.out_shapes == ((4, 7, 96),)


def test_a_copy_only_writes_its_target() -> None:
    kernel = known("aten::copy_", [[100, 10], [100, 10], []], ["float", "c10::Half", "Scalar"])
    assert (kernel.bytes_read, kernel.bytes_written) == (2000, 4000)


@pytest.mark.parametrize(
    ("name", "shapes", "types"),
    [
        ("aten::mm", [[4, 4]], ["float"]),  # one matrix only
        ("aten::add", [[], []], ["Scalar", "Scalar"]),  # no tensor
        ("aten::conv2d", [[1, 3, 8, 8], [4, 3, 3, 3]], ["float", "float"]),  # the output is not recorded
    ],
)
def test_what_shapes_do_not_tell_is_not_guessed(name: str, shapes: list[object], types: list[str]) -> None:
    assert op(name, shapes, types) is None


def test_an_unreadable_record_is_no_kernel() -> None:
    assert kernel_of_op("aten::add", "[[1,", '["float"]', None) is None


def test_a_lookup_reads_rows_and_not_the_table() -> None:
    # FBGEMM's: 2,304 indices, 385 offsets (128 samples of 3 tables, 16 wide): 128 x 48 floats out.
    shapes: list[object] = [[0], [640_279_200], [3], [3], [4], [4], [2304], [385], [640_279_200]]
    types = ["float", "float", "int", "long int", "int", "long int", "long int", "long int", "float"]
    name = "fbgemm::split_embedding_codegen_lookup_adagrad_function"
    found = known(name, shapes, types, [[128, 48]])
    assert found.bytes_written == 128 * 48 * 4
    assert found.bytes_read == found.bytes_written * 2304 // 385 + 8 * (2304 + 385)
    assert op(name, shapes, types) is None  # how wide the rows are is not recorded
    # Gathered rows are read and written once, their 351 numbers twice.
    found = known("aten::index", [[16, 27, 27], [351], [351]], ["float", "long", "long"], [[16, 351]])
    assert (found.bytes_read, found.bytes_written) == (16 * 351 * 4 + 8 * 702, 16 * 351 * 4)
