"""Door to `facerec overlap`."""

from facerec.commands.overlap import main

if __name__ == "__main__":
    main()
