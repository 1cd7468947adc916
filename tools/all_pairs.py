"""Door to `facerec all-pairs`."""

from facerec.commands.all_pairs import main

if __name__ == "__main__":
    main()
