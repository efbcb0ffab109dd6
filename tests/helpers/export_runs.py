"""Finished runs with known values, and exports of them."""

import numpy as np
import pandas as pd

from commands_here import run_here
from helpers.added_tables import add_key_heads, add_roles, name_layout
from helpers.run_tables import HEADS, LAYERS, add_bins, write_run

KEY_HEADS = HEADS // 2
VALUES = [0.3, 0.1, 0.2, 0.4, 0.05, 0.35]  # of three layers with two key heads
LAYOUT = {"num_layers": LAYERS, "num_q_heads": HEADS, "num_k_heads": KEY_HEADS}


def make_run(folder, **values):
    """A run with all heads of its model. `values` are columns of the table of key heads."""
    add_bins(write_run(folder))
    add_key_heads(folder, {"aligned_plasticity": VALUES, **values})
    return name_layout(folder, *LAYOUT.values())


def give_windows(run, *layers, kind="sliding_attention"):
    """Give layers a window or chunks."""
    heads = pd.read_csv(run / "head_metrics.csv")
    bounded = heads["layer"].isin(layers)
    heads["layer_type"] = np.where(bounded, kind, "full_attention")
    heads["sliding_window"] = np.where(bounded, 64.0, np.nan)
    heads.to_csv(run / "head_metrics.csv", index=False, na_rep="nan")
    return run


def drop_heads(run, layer, k_head):
    """Take a key head and its query heads out of the tables."""
    for name in ("head_metrics.csv", "key_head_metrics.csv"):
        table = pd.read_csv(run / name)
        own = (table["layer"] == layer) & (table["k_head"] == k_head)
        table[~own].to_csv(run / name, index=False, na_rep="nan")
    return run


def exported(run, out, kind, *words):
    """The folder of an export."""
    done = run_here("export", run, out, "--to", kind, *words)
    assert done.returncode == 0, done.stderr
    return out


def refusal(run, kind, *words):
    """The one line with which an export is refused."""
    out = run.parent / "refused"
    done = run_here("export", run, out, "--to", kind, *words)
    assert done.returncode == 2
    assert not out.exists()
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def give_roles(run, *copying, likely=False):
    """Roles of all query heads: those of these key heads copy, the others are `previous`."""
    add_roles(run)
    roles = pd.read_csv(run / "head_roles.csv")
    own = [(layer, head) in copying for layer, head in zip(roles.layer, roles.k_head, strict=True)]
    roles["likely_role"] = np.where(own, "induction", "previous")
    roles["role"] = np.where(own, "unsure", "previous") if likely else roles["likely_role"]
    roles.loc[roles["q_head"] % 2 == 1, ["role", "likely_role"]] = "previous"  # one of the group
    roles.to_csv(run / "head_roles.csv", index=False, na_rep="nan")
    return run
