"""See `python tools/make_records.py --help`."""

from facerec.commands.make_records import main

if __name__ == "__main__":
    main()
