"""`python analyze.py --config configs/x.yaml [--any_field value]`."""

import sys

try:
    from attention_plasticity.entry import analyze
except KeyboardInterrupt:
    sys.exit(130)
except ModuleNotFoundError:
    sys.exit("The toolkit is not installed here: run 'make setup', or 'pip install -e .'")

if __name__ == "__main__":
    sys.exit(analyze())
