"""`python scripts/plot_bucket_heatmap.py --config configs/plots/x.yaml [--any_field value]`."""

import sys

try:
    from attention_plasticity.entry import plot
except KeyboardInterrupt:
    sys.exit(130)
except ModuleNotFoundError:
    sys.exit("The toolkit is not installed here: run 'make setup', or 'pip install -e .'")

if __name__ == "__main__":
    sys.exit(plot("heatmap", __file__))
