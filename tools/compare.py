"""Door to `facerec compare`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("compare")
