"""One head: from its files to the rows of the tables.

`attention_plasticity.head_analysis` calls these files in this order; no file imports one that comes
after it.

1. `layout`: numbers of heads, and the key head of a query head
2. `texts`: the texts of the dump and their groups, read once per run
3. `layer`: type, scale and mask of the layer, from `dump.json`
4. `limits`, `rows`: the keys and queries of a head, read and checked
5. `queries`: regression on position, rotation, residuals
6. `attended_keys`: the attention that the keys receive
7. `plasticity`: plasticity with errors and counts
8. `result`, `values`: the rows of one head; its values, and why values are missing
9. `position_columns`, `plasticity_columns`, `cell_columns`, `attention_columns`: columns of tables
"""
