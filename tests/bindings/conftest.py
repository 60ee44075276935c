"""The libraries, headers and cdef of this machine; they are made once."""

from __future__ import annotations

import pytest

from bindings import generate
from native.build import Native, prepare


@pytest.fixture(scope="session")
def native() -> Native:
    return prepare()


@pytest.fixture(scope="session")
def cdef(native: Native) -> generate.Cdef:
    return generate.generate_for(native, with_backend=False)
