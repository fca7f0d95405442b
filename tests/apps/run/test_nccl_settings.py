"""NCCL's environment variables as --set keys."""

import pytest

from simcore.apps.run.settings import parse_settings
from simcore.errors import InputError


def test_variables_are_the_settings_that_they_stand_for() -> None:
    given = {
        "NCCL_ALGO": "^NVLS",
        "NCCL_PROTO": "LL,LL128",
        "NCCL_MIN_NCHANNELS": "2",
        "NCCL_MAX_CTAS": "8",
        "NCCL_BUFFSIZE": "8MiB",
        "NCCL_NVLS_ENABLE": "0",
    }
    found = parse_settings(given)
    assert found.nccl_texts == {"algorithm": "^NVLS", "protocol": "LL,LL128"}
    assert found.nccl_numbers == {"min_channels": 2, "max_channels": 8, "buffer_bytes": 8 << 20}
    assert not found.nvls
    assert found.given == given


@pytest.mark.parametrize(
    ("value", "enabled"), [("0", False), ("1", True), ("2", True), ("off", False), ("On", True)]
)
def test_the_switch_reduction_is_on_or_off(value: str, enabled: bool) -> None:
    assert parse_settings({"nccl.nvls": value}).nvls is enabled


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nccl.nvls": "perhaps"}, "nccl.nvls cannot be 'perhaps'"),
        ({"NCCL_ALGOS": "ring"}, "did you mean 'NCCL_ALGO'"),
        (
            {"nccl.algorithm": "ring", "NCCL_ALGO": "tree"},
            "NCCL_ALGO = 'tree' contradicts nccl.algorithm = 'ring'",
        ),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_settings(given)
