"""`python -m uma_gateway` is `uma-gateway`."""

import sys

from uma_gateway.cli import main

sys.exit(main())
