"""Door to `facerec audit`."""

from facerec.commands.audit import main

if __name__ == "__main__":
    main()
