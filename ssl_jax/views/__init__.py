"""Makes the augmented views of an image: boxes, crops, masks, photometric draws and the recipes
that name them.
"""
