"""Door to `facerec study`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("study")
