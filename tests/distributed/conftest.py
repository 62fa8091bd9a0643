"""The scripts here are for torchrun, not for pytest."""

collect_ignore_glob = ["*_worker.py"]
