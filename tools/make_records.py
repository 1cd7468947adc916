"""See `python tools/make_records.py --help`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("make-records")
