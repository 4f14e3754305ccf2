"""Detectors on exported networks: `python -m launch.detection`."""
