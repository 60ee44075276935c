"""`python -m uma_ctl` is `uma-ctl`."""

import sys

from uma_ctl.main import main

sys.exit(main())
