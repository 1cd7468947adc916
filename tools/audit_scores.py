"""Door to `facerec audit-scores`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("audit-scores")
