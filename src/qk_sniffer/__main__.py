"""`python -m qk_sniffer`, the form that `torchrun -m` wants."""

import sys

from qk_sniffer.entry import main

sys.exit(main())
