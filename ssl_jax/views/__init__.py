"""From one image to its augmented views: boxes, crops, masks, photometric draws and the recipes
that name them.
"""
