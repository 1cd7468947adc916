"""What reports are made of: estimates, tables, figures, pages, and the bar that shows progress.

A figure is an `Estimate`; a `Table` says once what its columns show and write; a `Page` begins with
what was found. New reports are made of these.
"""
