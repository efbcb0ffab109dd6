"""Weights of the rows of a head: the inverse of the probability that a token was kept.

With these weights a mean over rows estimates the mean over all tokens, for every sampler.
"""

from __future__ import annotations

import numpy as np

from qk_dump.heads import Kind
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_dump.positions import keep_probabilities
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Array


def token_weights(dump: Dump, kind: Kind, rows: HeadRows) -> Array:
    """(n,) tokens that each query (`q`) or key (`k`) of a head stands for: 1/π.

    `dump.json` has the sampler of the capture. `max_tokens_per_head` keeps a further share of the
    rows, the same for every row. The weights are 1 if the sampler is not known.
    """
    found = keep_probabilities(dump.manifest, kind, rows.position)
    if found.values is None:
        return np.ones(len(rows))
    return np.asarray(1.0 / (found.values * rows.subsampled))


def why_no_weights(manifest: DumpManifest | None) -> str | None:
    """Why the rows of a dump have no weights; None if they have."""
    reasons = (keep_probabilities(manifest, kind, np.zeros(0)).reason for kind in ("q", "k"))
    return next((reason for reason in reasons if reason is not None), None)
