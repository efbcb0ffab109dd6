"""Dumps on the Hugging Face Hub: one dataset, one branch per model.

Reading straight from the Hub is not built yet; what is here finds a dump on this machine and, when
only a dataset is named, says how to bring it here.
"""

from __future__ import annotations

from qk_dump.errors import ConfigError
from qk_dump.layout import Dump, open_dump


def locate_dump(
    local_root: str | None,
    model_dir: str | None,
    *,
    dataset_name: str,
    dataset_revision: str | None,
) -> Dump:
    """The dump at `local_root`; without one, how to download `dataset_name` by hand."""
    if local_root is not None:
        return open_dump(local_root, model_dir)
    branch = f" --revision {dataset_revision}" if dataset_revision else ""
    raise ConfigError(
        "dataset_local_root: not given, and reading from the Hub is not available in this version. "
        "Download the dump (pip install huggingface_hub; one branch per model) with "
        f"'hf download {dataset_name} --repo-type dataset{branch} --local-dir dump', "
        "then add --dataset_local_root dump."
    )
