# The service, on CPUs. The model is mounted:
#   docker build --tag facerec --build-arg TORCH_INDEX=… .    # PyTorch's index of builds for CPUs
#   docker run --publish 127.0.0.1:8000:8000 --volume "$PWD/runs/NAME/export:/model:ro" facerec
FROM python:3.12-slim

# OpenCV's wheel links against these.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

# Without it PyTorch comes with CUDA 13, which takes gigabytes.
ARG TORCH_INDEX=""
ENV PIP_EXTRA_INDEX_URL=$TORCH_INDEX
WORKDIR /source
COPY . .
# PyTorch of the release that constraints.txt pins.
RUN pip install --no-cache-dir --constraint constraints.txt '.[onnx,serve]' \
    && useradd --uid 1000 --create-home facerec

USER 1000
WORKDIR /home/facerec
EXPOSE 8000
# Probes may use any name for the host. It answers 503 when the model cannot.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["facerec"]
CMD ["serve", "/model", "--host", "0.0.0.0"]
