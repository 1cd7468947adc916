"""Door to `facerec embed`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("embed")
