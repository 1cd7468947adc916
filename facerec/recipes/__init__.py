"""Recipes: one file an experiment, trained by its name, `facerec train arcface_sec_r50`."""
