"""Door to `facerec clean`."""

from facerec.commands.clean import main

if __name__ == "__main__":
    main()
