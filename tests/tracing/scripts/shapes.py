"""A ``--setup`` file: the shapes of an operator that has no rule of its own."""

import torch


def _shapes(x):
    return torch.empty_like(x)


_library = torch.library.Library("simcore_tests", "FRAGMENT")
_define = torch.library.custom_op


def custom_op(name, **options):
    """As torch's, with shapes for the one operator of the script that is run next."""

    def made(function):
        operator = _define(name, **options)(function)
        operator.register_fake(_shapes)
        return operator

    return made


torch.library.custom_op = custom_op
