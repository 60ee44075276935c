"""The compiler of constraints, as in the tests of constraints."""

from __future__ import annotations

from tests.constraint.conftest import compiler
