"""The HTTP process, the command line, and the launcher that supervises the other processes."""
