"""Budgets of key heads: how many keys of a context each head may keep, from a finished run.

`rule.py` has the arithmetic, `orders.py` the values by which heads are ordered, `evidence.py` what
was measured with each order, `files.py` what is written.
"""
