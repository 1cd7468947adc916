"""Door to `facerec convert`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("convert")
