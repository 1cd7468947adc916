"""Door to `facerec import-weights`."""

from facerec.commands.import_weights import main

if __name__ == "__main__":
    main()
