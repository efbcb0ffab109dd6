"""QK-Sniffer: captures sampled queries and keys of a Hugging Face model.

The capture stage is not part of this version; the package holds its place in the house.
"""
