"""The cost model: predict (`model`), learn (`learn`), calibrate (`calibrate`)."""
