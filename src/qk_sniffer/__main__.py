"""`python -m qk_sniffer`, the form that `torchrun -m` wants."""

import sys

from qk_sniffer.cli import main

sys.exit(main())
