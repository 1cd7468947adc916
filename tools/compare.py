"""Door to `facerec compare`."""

from facerec.commands.compare import main

if __name__ == "__main__":
    main()
