"""Door to `facerec plan`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("plan")
