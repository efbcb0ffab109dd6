"""One head: from its files to the rows of the tables.

`attention_plasticity.head_analysis` calls these files in this order; no file imports one that comes
after it.

1. `layout`: numbers of heads, the key head of a query head, and the largest sizes
2. `texts`: the texts of the dump and their groups, read once per run
3. `layer`: type, logits and rotary record of the layer, `token_weights`: weights of rows; both from
   `dump.json`
   `band_rows`: vectors in the order of rotary bands; `drift_rows`: their moments after and before
   RoPE
4. `rows`: bins of positions, one choice per run, and the keys and queries of a head, read, checked,
   and bounded in size
5. `result`, `values`, `unknown`: what becomes of a head: its rows, its values, and why values are
   missing
6. `queries`, `position_columns`: regression on position, rotation, residuals; their normality;
   means of attention over queries
7. `key_pool`: captured keys and those drawn by attention, and the attention that the keys receive
8. `plasticity`: query model, key pairs and scores, with errors and counts
9. `plasticity_columns`: means, fifths, bias, influences, cells
   `windows`, `binned_queries`, `aligned`, `aligned_columns`: the same at one position, in bins;
   pairs that are seen through a window
   `attended`: plasticity of attended pairs, in bins
10. `bands`: rotary bands and the rotary kernel
    `drift_points`: points on principal components; `drift_geometry`: axes of drift, components
11. `key_head`: counts for the row of the key head, joined by `run/key_heads.py`
12. `repeated`: the dump of repeated tokens; `role_columns`: what a head does, and words

The seed of the key pairs is `pair_seed` in `head_analysis`. `run/` writes the rows of all heads.
"""
