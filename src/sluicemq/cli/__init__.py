"""The command line, `sluicemq …`: one file for each group of commands."""
