"""Standard errors and bias of a head, from the differences between groups of texts.

In the order of use:

1. `text_groups`: the group of every text
2. `influences`: influences of the groups on the Gaussian of a query bucket; `bucket_influences`:
   of all query buckets
3. `uncertainty`: influences on plasticity, standard errors, bias
4. `counting`: plasticity from counts, without a Gaussian
5. `variance_parts`: the parts of texts, queries, keys and pairs in the error, for `power`
"""
