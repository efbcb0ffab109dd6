"""Budgets of key heads in kvpress, on any model: `make evidence`.

1. `plan`: sizes, and every condition that is tried
2. `texts`: books, code, French, records and tasks as tokens
3. `values`: captures, and the values of key heads
4. `budgets`: rules of division, and the budgets of every allocation
5. `contexts`, `presses`: texts in the cache of the model, compressed by presses of kvpress
6. `results`: outcomes on disk, so that a killed run continues
7. `choice`: which rule is chosen
8. `tables`: what the pages show
"""
