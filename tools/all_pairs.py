"""Door to `facerec all-pairs`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("all-pairs")
