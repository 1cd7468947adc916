"""Floor 0: recipes, errors, files, names and small helpers, on the standard library and numpy."""
