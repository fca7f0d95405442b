"""Watts of kernels, and how power grows with the clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.apps.fit.watts import print_watts
from simcore.errors import InputError


def test_watts_say_what_is_at_the_limit_and_how_power_grows_with_the_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels, limits = tmp_path / "kernels.csv", tmp_path / "limits.csv"
    # 2 * 8192 ** 3 flop at 0.9017 of 989.4 Tflop/s last 1.23 ms and more; 1.5 ms is some 1.2 times as long.
    kernels.write_text(
        "gpu,op,dtype,m,n,k,time_us,power_w,power_limit_w,power_window_s_min\n"
        "H200-SXM,gemm,bfloat16,8192,8192,8192,1500,690,700,1.0\n"
        "H200-SXM,attention,bfloat16,,,,1500,450,700,1.0\n"
        "H200-SXM,attention,bfloat16,,,,15,100,700,0.1\n"
    )
    # With 50 of 250 W static: a quarter of the power for work at 1 / sqrt(2) of the speed.
    limits.write_text(
        "gpu,dataset,network,batch_size,optimizer,power_limit_w,time_per_epoch_s,average_gpu_power_w\n"
        "V100,squad,bert,8,adamw,250,1.0,250\nV100,squad,bert,8,adamw,100,1.4142,100\n"
    )
    print_watts(str(kernels), str(limits))
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[-3:] for line in out if line.startswith("H200")] == [
        ["1", "450", "0%"], ["1", "690", "100%"],
    ]  # fmt: skip
    assert 1.1 < float(next(line for line in out if line.startswith("up to")).split()[-1]) < 1.25
    # (250 - 50) / (100 - 50) = 4 = sqrt(2) ** 4.
    assert float(out[-1].split()[-2]) == pytest.approx(4.0, abs=0.01)
    with pytest.raises(InputError, match="no column 'op'"):
        print_watts(str(limits), str(limits))
