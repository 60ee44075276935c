"""The cost model: predict (`CostModel`), learn (`observe`), calibrate (`calibration_shapes`, `fit`, `guess`)."""

from uma_core.policy.cost.calibrate import (
    CHUNK,
    DECODE,
    MIXED,
    N_STEPS,
    PIECE,
    SHORT,
    TRANSFER,
    Sample,
    Shape,
    calibration_shapes,
    fit,
    guess,
)
from uma_core.policy.cost.curve import Curve
from uma_core.policy.cost.learn import observe
from uma_core.policy.cost.model import CostModel

__all__ = [
    "CHUNK",
    "DECODE",
    "MIXED",
    "N_STEPS",
    "PIECE",
    "SHORT",
    "TRANSFER",
    "CostModel",
    "Curve",
    "Sample",
    "Shape",
    "calibration_shapes",
    "fit",
    "guess",
    "observe",
]
