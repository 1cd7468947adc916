"""Door to `facerec inspect`; a file called inspect.py would stand in the way of Python's own."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("inspect")
