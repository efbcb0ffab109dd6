"""Budgets of key heads in kvpress, on SmolLM2-135M: `make evidence`.

1. `plan`: sizes, and every condition that is tried
2. `prepare`: texts, and the values of key heads from a capture of another book
3. `budgets`: rules of division, and the budget files of all conditions
4. `contexts`: texts in the cache of the model, compressed by presses of kvpress
5. `results`: outcomes on disk, so that a killed run continues
6. `tables`, `figures`: what the page shows
"""
