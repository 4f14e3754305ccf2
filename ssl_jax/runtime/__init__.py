"""What every run needs whatever it computes: signals, progress, processes, meshes, locks."""
