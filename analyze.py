"""`python analyze.py --config configs/x.yaml [--any_field value]`."""

import sys

from attention_plasticity.cli import analyze

if __name__ == "__main__":
    sys.exit(analyze(program="python analyze.py"))
