"""Model families: Config, names, shapes and costs in one module each; PyTorch parts beside."""

import importlib

FAMILIES = ("xlstm",)


def load(name):
    if name not in FAMILIES:
        raise ValueError(f"family {name} is not known, wanted one of {', '.join(FAMILIES)}")
    return importlib.import_module(f"{__name__}.{name}")
