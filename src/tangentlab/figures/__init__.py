"""Figures: a picture with its caption, the house style, SVG for pages and files, and numbers as people read them."""
