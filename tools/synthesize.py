"""Door to `facerec synthesize`."""

from facerec.commands.synthesize import main

if __name__ == "__main__":
    main()
