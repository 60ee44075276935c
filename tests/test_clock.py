import pytest

from uma_core.clock import ManualClock, MonotonicClock


def test_the_monotonic_clock_never_goes_back():
    clock = MonotonicClock()
    readings = [clock.now_ns() for _ in range(100)]
    assert readings == sorted(readings)


def test_the_manual_clock_moves_only_when_told():
    clock = ManualClock(5)
    assert clock.now_ns() == clock.now_ns() == 5
    assert clock.advance(7) == 12
    assert clock.now_ns() == 12


def test_the_manual_clock_refuses_to_go_back():
    with pytest.raises(ValueError):
        ManualClock().advance(-1)
