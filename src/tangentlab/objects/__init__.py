"""Vectors and matrices in parameter space and in function space."""
