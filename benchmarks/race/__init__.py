"""The race: gnvpro against other trainers, in seconds and work to given accuracies. `python -m benchmarks.race --help`."""
