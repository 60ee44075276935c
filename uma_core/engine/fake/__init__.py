"""FakeEngine: the Engine contract without a model, for tests and simulations."""
