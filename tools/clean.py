"""Door to `facerec clean`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("clean")
