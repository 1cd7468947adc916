"""Python loads this into every process whose path begins with this folder."""

import os

from network_guard import forbid

if "NETWORK_LOG" in os.environ:
    forbid(os.environ["NETWORK_LOG"])
