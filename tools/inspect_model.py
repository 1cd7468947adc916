"""Door to `facerec inspect`; a file called inspect.py would stand in the way of Python's own."""

from facerec.commands.inspect import main

if __name__ == "__main__":
    main()
