"""Door to `facerec train`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("train")
