"""Augmented views of an image: boxes, crops, masks, photometric draws, and the recipes that combine
them.
"""
