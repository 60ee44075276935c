"""UMA Serve: one model, shared by all applications of a machine, without one freezing another."""

from uma_core._version import __version__

__all__ = ["__version__"]
