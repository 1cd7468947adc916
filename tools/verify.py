"""Door to `facerec verify`."""

from facerec.commands.verify import main

if __name__ == "__main__":
    main()
