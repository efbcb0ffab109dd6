"""`attention-plasticity export`: files that other tools load, made from a dump.

1. `source`: the heads of a model that a file must have, those that the dump has, and refusals
2. `queries`: the queries of one head, before or after RoPE, with their weights
3. `far_attention`: values of query heads, `static_error`: values of key heads of a run, `gates`:
   from values of key heads to gates
4. `expected_attention`, `q_filters`, `triattention`, `duo`, `headkv`: one file per format; each
   returns `content.Content`
5. `provenance`: where the numbers come from, and their errors
6. `folder`: writing in one step, without replacing files of others
7. `command`: the verb
"""
