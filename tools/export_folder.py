"""See `python tools/export_folder.py --help`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("export-folder")
