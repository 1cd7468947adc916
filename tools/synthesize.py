"""Door to `facerec synthesize`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("synthesize")
