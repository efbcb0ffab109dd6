"""Sizes that the numeric code and the tables share. Imports nothing."""

from __future__ import annotations

GROUPS = 16  # of texts
FIFTHS = 5  # parts of the context
SINK_TOKENS = 4  # first tokens of a text, which often receive much attention
DISTANCES = (0, *(1 << power for power in range(23)))
"""First distances of the bins of attention: 0, 1, 2–3, 4–7 and so on."""
