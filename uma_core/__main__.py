"""`python -m uma_core` is `uma-core`."""

import sys

from uma_core.cli import main

sys.exit(main())
