"""Door to `facerec identify`."""

from facerec.commands.identify import main

if __name__ == "__main__":
    main()
