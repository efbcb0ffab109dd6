"""`attention-plasticity export`: files that other tools load, made from a dump or a finished run.

From a dump:

1. `source`: the heads of a model that a file must have, those that the dump has, and refusals
2. `queries`: the queries of one head, before or after RoPE, with their weights
3. `query_moments`: their means and covariances, with errors; arrays in, arrays out
4. `expected_attention`, `q_filters`, `triattention`: one file per format

From a run:

1. `order`: the value of every key head, its error and its rank, and refusals
2. `division`: from values to shares of keys; arrays in, arrays out
3. `duo`, `kvpress_budget`: one file per format; `budget_text`: what is printed about budgets

Both:

1. `content`: what a format puts into its folder
2. `provenance`: where the numbers come from, and their errors
3. `folder`: writing in one step, without replacing files of others
4. `command`: the verb
"""
