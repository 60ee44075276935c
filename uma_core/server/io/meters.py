"""The metrics of the I/O side, looked up in the registry once."""

from __future__ import annotations

from uma_core.errors import ErrorCode
from uma_core.metrics import catalog as metrics


class IoMeters:
    """Written by the I/O thread only."""

    def __init__(self, registry: metrics.Registry) -> None:
        self.connections = registry.gauge(metrics.CONNECTIONS)
        self.connections_total = registry.counter(metrics.CONNECTIONS_TOTAL)
        self.rx_bytes = registry.counter(metrics.RX_BYTES)
        self.tx_bytes = registry.counter(metrics.TX_BYTES)
        self.tx_buffered = registry.gauge(metrics.TX_BUFFERED)
        self.overlap = registry.gauge(metrics.OVERLAP_ACTIVE)
        self.slow_clients = registry.counter(metrics.SLOW_CLIENTS)
        self._errors = {code: registry.counter(metrics.ERRORS, code=code.code) for code in ErrorCode}

    def count_error(self, code: ErrorCode) -> None:
        self._errors[code].add()
