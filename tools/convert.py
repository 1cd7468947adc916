"""Door to `facerec convert`."""

from facerec.commands.convert import main

if __name__ == "__main__":
    main()
