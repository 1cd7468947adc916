"""Commands: arguments → a call → a printed table; one file a command."""

from facerec.base.environment import bound_threads

bound_threads()
