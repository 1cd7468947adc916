"""Commands: arguments → a call → a printed table; one file a command."""

from facerec.environment import bound_threads

bound_threads()
