"""Door to `facerec group`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("group")
