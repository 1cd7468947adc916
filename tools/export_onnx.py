"""Door to `facerec export-onnx`."""

from facerec.commands.main import run

if __name__ == "__main__":
    run("export-onnx")
