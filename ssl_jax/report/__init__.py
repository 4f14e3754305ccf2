"""Reports for people: the final comparison of a run, curves, pictures, pages."""
