"""Door to `facerec study`."""

from facerec.commands.study import main

if __name__ == "__main__":
    main()
