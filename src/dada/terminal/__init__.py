"""The command: what a person types, sees while it runs, and reads when it has ended.

commands.py    the table of commands, without logic; start reading here
start.py, signals.py    where the program begins, and how it ends when it is told to
options.py     the options that search, train and compare share
run.py         a run as a person follows it: directory, progress, tracking
progress.py    what is seen while it runs
results.py     what is printed when it has ended
policy_table.py, doctor.py, tracking.py    `dada show`, `dada doctor`, `--track`
console.py, streams.py, errors.py          where all of it goes through
"""
