"""Door to `facerec translate`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("translate")
