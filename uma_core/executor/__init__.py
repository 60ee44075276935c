"""The executor: carries out plans and never chooses. One per loaded model, run by the compute thread."""
