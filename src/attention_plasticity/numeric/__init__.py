"""Arrays in, arrays out: the analysis of one head, without files and settings.

Only numpy and scipy are imported here. `sizes` and `blocks` are used by many files. A head passes
the other files in this order; no file imports one that comes after it.

1. `scaling`: powers of two against overflow and underflow
2. `position`: regression on position, rotation to the positional basis, residuals
3. `normality`: Kolmogorov–Smirnov tests, skewness and kurtosis of the residuals
4. `bins`: bins of positions and their weights, `query_model`: mean, covariance and Gaussian of the
   queries of every bucket
5. `eligibility`: cells of a query bucket and a key bucket that it can see
6. `key_pairs`: pairs of keys of one bucket, of near keys, or of any two earlier keys
7. `pair_pool`, `windows`, `attention_received`, `attended_pairs`: pairs in proportion to the
   weights of their keys, such as the attention that they receive
8. `pair_samples`: keys, pairs and cells together; `visible_pairs`: pairs that queries see through a
   window
9. `scores`: p, 4p(1−p) and its derivatives, from key differences and a Gaussian
10. `errors`: groups of texts, their influences, standard errors, bias, counts
11. `profile`: plasticity by distance, by query bucket, by fifth of the context
12. `scoring`: steps 9, 10 and 11 for all pairs and all query buckets
13. `attention_means`: means over tokens of the attention columns; `drift`: how far vectors drift
    with position; `drift_geometry`: along which axis, with cross-fitted correlations, and principal
    components
14. `distance_pairs`: pairs of a query and an earlier key by distance; `bands`: rotary bands;
    `rotary_kernel`: the logit of the mean query and the mean key
15. `text_pairs`: pairs of any two keys of one text; `pair_preferences`: which key later queries
    prefer; `preference_scores`: plasticity and static error of a key head; `attention_spread`: how
    unequally keys receive attention
16. `role_scores`: what a head attends to; `word_choice`: queries that are shown as examples
17. `query_moments`: mean and covariance of queries over tokens, for files of other tools
18. `query_fit`: Gaussians of the queries of a head, from sums that can be subtracted; `key_scores`:
    scores that rank the keys of a text without a query; `kept_attention`: the attention that stays
    if only the keys with the largest scores are kept

`from_arrays` has steps 4 to 12 as one function for a notebook.
"""
