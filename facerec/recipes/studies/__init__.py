"""Studies of the spherical embedding constraint."""
