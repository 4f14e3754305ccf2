"""Types of pictures, and pictures shared by several methods and evaluations."""
