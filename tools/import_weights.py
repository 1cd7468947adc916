"""Door to `facerec import-weights`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("import-weights")
