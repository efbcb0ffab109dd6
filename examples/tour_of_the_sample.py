# %% [markdown]
# # A tour of the library
#
# The package contains real queries and keys: three layers of SmolLM2-135M on Moby-Dick. Run this
# script with `python examples/tour_of_the_sample.py`, cell by cell in an editor that supports
# `# %%`, or as a notebook (`jupytext --to ipynb`).

# %%
from pathlib import Path
from tempfile import mkdtemp

import attention_plasticity as ap
from attention_plasticity.figures import caption_of, save_figure
from attention_plasticity.tables.profiles import head_profiles

dump = ap.open_sample()
print(f"{len(dump.query_heads)} query heads and {len(dump.key_heads)} key heads")

# %% [markdown]
# ## One head
#
# `analyze_head` returns the metrics of one head: the share of variance that position explains,
# how Gaussian the residuals are, and the plasticity.

# %%
head = ap.analyze_head(layer=14, q_head=4, dump=dump)
print(f"plasticity {head.metrics['ap_aligned']:.3f}, drop {head.metrics['ap_aligned_drop']:+.3f}")
print(f"variance from position {head.metrics['q_R2_total']:.3f}")
print(head.bucket_plasticity.head())

# %% [markdown]
# ## All heads
#
# `analyze_dump` writes the same tables as the command and returns them as DataFrames.

# %%
folder = Path(mkdtemp(prefix="plasticity-"))
run = ap.analyze_dump(dump, output_dir=str(folder))
metrics = run.head_metrics
print(metrics.groupby("layer")[["ap_aligned", "ap_aligned_drop", "q_R2_total"]].mean().round(3))
most = metrics.nlargest(3, "ap_aligned")[["layer", "q_head", "ap_aligned"]]
print(most.to_string(index=False))

# %% [markdown]
# ## Effect of the query model
#
# It concerns plasticity over a bucket, which contains the rotation of RoPE.

# %%
full = ap.analyze_dump(dump, output_dir=str(folder / "full"), query_model="full")
both = metrics.merge(full.head_metrics, on=["layer", "q_head"], suffixes=("", "_full"))
agreement = both["ap_overall"].corr(both["ap_overall_full"], method="spearman")
print(f"rank correlation of the heads' plasticity, positional against full: {agreement:.3f}")

# %% [markdown]
# ## Figures and the page
#
# `run.plot` has the kinds and options of `attention-plasticity plot` and returns a matplotlib
# `Figure`. `save_figure` also writes its caption. In a notebook, `run.report()` as the last
# expression of a cell shows the HTML page.

# %%
figure = run.plot("plasticity", color="layer", model_name="SmolLM2-135M")
save_figure(figure, folder / "plasticity.png")
save_figure(run.plot("map", metric="ap_aligned_drop", layers="14"), folder / "drop.svg")
print(caption_of(figure))
page = run.report().save(folder / "report.html")
print(f"{page}: {page.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# ## The profile over buckets as a table

# %%
profile = head_profiles(run.bucket_plasticity).groupby("q_bucket")["plasticity"].mean()
print(profile.round(3).to_string())
