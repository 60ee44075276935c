"""Recordings of ticks: JSON lines that can be replayed, and a timeline for Perfetto."""
