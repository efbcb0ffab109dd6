"""`python -m attention_plasticity` is the `attention-plasticity` command."""

import sys

from attention_plasticity.entry import main

sys.exit(main())
