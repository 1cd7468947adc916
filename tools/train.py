"""Door to `facerec train`."""

from facerec.commands.train import main

if __name__ == "__main__":
    main()
