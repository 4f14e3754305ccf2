"""What people look at: the final comparison of a run, curves, pictures, pages."""
