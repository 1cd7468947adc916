"""Door to `facerec same`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("same")
