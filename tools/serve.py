"""Door to `facerec serve`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("serve")
