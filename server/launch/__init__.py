"""Launching and supervising the other processes: the only place, with the command line, that may import them all."""

from server.launch.launch import launch

__all__ = ["launch"]
