"""Door to `facerec enroll`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("enroll")
