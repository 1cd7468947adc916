"""See `python tools/export_folder.py --help`."""

from facerec.commands.export_folder import main

if __name__ == "__main__":
    main()
