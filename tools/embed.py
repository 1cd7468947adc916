"""Door to `facerec embed`."""

from facerec.commands.embed import main

if __name__ == "__main__":
    main()
