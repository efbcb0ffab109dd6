"""`python -m attention_plasticity` is the `attention-plasticity` command."""

import sys

try:
    from attention_plasticity.entry import main
except KeyboardInterrupt:
    sys.exit(130)

sys.exit(main())
