"""``python -m facerec COMMAND …`` is ``facerec COMMAND …``."""

from facerec.commands.main import main

if __name__ == "__main__":  # not in worker processes, which import the main module again
    main()
