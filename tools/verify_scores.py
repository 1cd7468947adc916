"""Door to `facerec verify-scores`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("verify-scores")
