"""`attention-plasticity export`: files that other tools load, made from a dump or a finished run.

From a dump:

1. `source`: the queries of the dump, and refusals
2. `queries`: means and covariances of queries, with errors; arrays in, arrays out
3. `formats`, `triattention`: one function per format

From a run:

1. `order`: the value of every key head, its error and its rank, and refusals
2. `division`: from values to shares of keys; arrays in, arrays out
3. `budget`, `gates`: one function per format, and what is printed

Both:

1. `settings`: the table of formats, and their options
2. `heads`: the heads that a file must have, and those without values
3. `provenance`: where the numbers come from
4. `folder`: files, written in one step, without replacing files of others
5. `command`: the verb
"""
