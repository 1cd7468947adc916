"""Commands: arguments → a call → a printed table; one file a command."""
