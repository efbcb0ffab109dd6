"""On any small head, the analysis gives what the slow reference gives."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity import analyze_head, make_config, open_dump
from dumps import distinct_tokens
from reference import analyse, write_rows
from reference_checks import assert_equals_reference


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n_q=st.integers(3, 60),
    n_k=st.integers(1, 60),
    d=st.integers(1, 7) | st.just(16),
    examples=st.integers(1, 5) | st.integers(10, 30),
    bucket_size=st.sampled_from([1, 5, 17, 100]),
    window=st.none() | st.integers(1, 120),
    query_model=st.sampled_from(["positional", "full", "diagonal"]),
    pair_sampling=st.sampled_from(["bucket", "local", "context"]),
    num_pairs=st.sampled_from([1, 6, 1000]),
    max_rel_dist=st.sampled_from([0.05, 0.2, 0.6]),
    dtype=st.sampled_from([np.float32, np.float64]),
    fraction=st.sampled_from([0.0, 0.25]),
)
def test_any_small_head_equals_the_reference(
    tmp_path_factory,
    seed,
    n_q,
    n_k,
    d,
    examples,
    bucket_size,
    window,
    query_model,
    pair_sampling,
    num_pairs,
    max_rel_dist,
    dtype,
    fraction,
):
    root = tmp_path_factory.mktemp("dump")
    rng = np.random.default_rng(seed)
    if pair_sampling != "bucket":
        num_pairs = min(num_pairs, 20)
    for name, n in (("l00h00q", n_q), ("l00h00k", n_k)):
        example, position = distinct_tokens(rng, examples, 100, n)
        order = rng.permutation(len(position))
        example, position = example[order], position[order]
        vectors = rng.standard_normal((len(order), d)) + np.outer(
            position / 50, rng.standard_normal(d)
        )
        write_rows(
            root,
            name,
            bucket=position // bucket_size,
            example_id=example,
            position=position + fraction,
            vectors=vectors.astype(dtype),
            sliding_window=window,
        )
    config = make_config(
        query_model=query_model,
        pair_sampling=pair_sampling,
        num_pairs_per_bucket=num_pairs,
        max_rel_dist=max_rel_dist,
        seed=seed,
    )
    result = analyze_head(0, 0, 0, open_dump(root), config)
    assert_equals_reference(result, analyse(root, 0, 0, 0, config), (1e-8, 1e-8))
