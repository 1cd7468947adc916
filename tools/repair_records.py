"""See `python tools/repair_records.py --help`."""

from facerec.commands.repair_records import main

if __name__ == "__main__":
    main()
