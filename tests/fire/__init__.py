"""Fuzzers: hostile files, names and options by the thousand, and processes that are killed.

    python -m tests.fire [--only NAME] [--count N] [--minutes M] [--seed S]     (PYTHONPATH=src)

cases.py       what a fuzzer is, and what counts as a fault
mutations.py   how files and names are damaged
files.py       policies, imports, data, run files, checkpoints
commands.py    images and options, through the command
exports.py     hostile names in exported code
kills.py       kills and the soak: forks of one process that has everything imported
__main__.py    runs them, and adds what it saw to benchmarks/results/reliability.json

Case n of a fuzzer is the same on every machine, so a fault can be looked at again by its number.
"""
