"""Door to `facerec audit-plan`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("audit-plan")
