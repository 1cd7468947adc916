"""Door to `facerec plan`."""

from facerec.commands.plan import main

if __name__ == "__main__":
    main()
