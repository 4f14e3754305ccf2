"""Signals, progress, processes, meshes and locks, which every run needs."""
