"""What PROTOCOL.md shows."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.daemon.support import ROOT

PROTOCOL = (ROOT / "docs" / "PROTOCOL.md").read_text()
(CLIENT,) = re.findall(r"```python\n(.*?)```", PROTOCOL, re.DOTALL)
STATUS: dict[str, Any] = next(
    json.loads(text) for text in re.findall(r"```json\n(.*?)```", PROTOCOL, re.DOTALL) if "uptime_s" in text
)
