"""A format of one's own: rows of ops in a CSV become a job, once docs/extend/importer.py is registered."""

import pytest

from simcore.apps.replay.play import play
from simcore.errors import InputError
from tests.extend import example
from workloads.imports import formats, import_traces

HEADER = b"rank,stream,name,start_us,end_us\n"


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(formats, "FORMATS", dict(formats.FORMATS))
    example("importer")


@pytest.mark.usefixtures("registered")
def test_rows_of_ops_are_replayed(tmp_path):
    # Rank 1 computes 40 us longer; rank 0 waits for it in an all_reduce that takes no time of its own.
    rows = "0,7,gemm,0,60\n0,7,all_reduce,60,100\n1,7,gemm,0,100\n1,7,all_reduce,100,100\n"
    path = tmp_path / "ops.csv"
    path.write_bytes(HEADER + rows.encode())
    job = import_traces([path])
    assert job.report.format == "ops_csv"
    assert [row.replayed.span for row in play(job).steps()] == [100e-6, 100e-6]


@pytest.mark.usefixtures("registered")
def test_a_bad_row_is_refused_by_its_number(tmp_path):
    path = tmp_path / "ops.csv"
    path.write_bytes(HEADER + b"0,7,gemm,60,0\n")
    with pytest.raises(InputError, match=r"ops\.csv: line 2: ends before it starts"):
        import_traces([path])


def test_unregistered_files_are_refused(tmp_path):
    path = tmp_path / "ops.csv"
    path.write_bytes(HEADER + b"0,7,gemm,0,60\n")
    with pytest.raises(InputError, match="no known trace"):
        import_traces([path])
