"""The demographic norm audit: raw norms and recorded attributes → figures by group."""
