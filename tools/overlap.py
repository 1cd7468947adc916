"""Door to `facerec overlap`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("overlap")
