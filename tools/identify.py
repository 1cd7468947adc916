"""Door to `facerec identify`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("identify")
