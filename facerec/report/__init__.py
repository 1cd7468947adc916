"""What reports are made of: blocks of a page, and tables for spreadsheets."""
