"""The command line, and the composition roots behind its commands. Data goes to stdout, talk to stderr."""
