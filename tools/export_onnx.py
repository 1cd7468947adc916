"""Door to `facerec export-onnx`."""

from facerec.commands.export_onnx import main

if __name__ == "__main__":
    main()
