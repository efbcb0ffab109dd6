"""How the logits of a layer follow from dot products, and which keys a query sees.

Arrays in, arrays out; numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attention_plasticity.estimate.visible import Visible
from qk_toolkit.arrays import Vectors

_ROUNDING, _RELATIVE_ROUNDING = 0.1, 2.0**-9  # by which a logit may exceed lse


@dataclass(frozen=True)
class Logits:
    """How the logits of a layer follow from q·k, and which keys a query sees."""

    scale: float
    softcap: float | None = None  # logits are c·tanh(logit/c)
    visible: Visible = field(default_factory=Visible)

    def of(self, products: Vectors) -> Vectors:
        """Logits from the dot products, which are overwritten."""
        products *= products.dtype.type(self.scale)
        if self.softcap is not None:
            products /= products.dtype.type(self.softcap)
            np.tanh(products, out=products)
            products *= products.dtype.type(self.softcap)
        return products


def allowed_excess(Q: Vectors, K: Vectors, lse: Vectors, scale: float) -> float:
    """How much a logit may exceed `lse` because vectors were rounded, at most to float16."""
    norms = [float(np.sqrt(np.einsum("nd,nd->n", X, X).max(initial=0.0))) for X in (Q, K)]
    largest = abs(scale) * norms[0] * norms[1]  # of a logit
    return _ROUNDING + _RELATIVE_ROUNDING * max(float(np.abs(lse).max(initial=0.0)), largest)
