"""`python scripts/plot_bucket_heatmap.py --config configs/plots/x.yaml [--any_field value]`."""

import sys

try:
    from attention_plasticity.plots.commands import script
except ModuleNotFoundError:
    sys.exit("The toolkit is not installed here: run 'make setup', or 'pip install -e .'")

if __name__ == "__main__":
    sys.exit(script("heatmap", __file__))
