"""Door to `facerec calibrate`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("calibrate")
