"""Door to `facerec enroll`."""

from facerec.commands.enroll import main

if __name__ == "__main__":
    main()
