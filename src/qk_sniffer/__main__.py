"""`python -m qk_sniffer`, the form that `torchrun -m` wants."""

import sys

try:
    from qk_sniffer.entry import main
except KeyboardInterrupt:
    sys.exit(130)

sys.exit(main())
