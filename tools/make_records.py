"""Door to `facerec make-records`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("make-records")
