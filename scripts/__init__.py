"""Thin commands: parse arguments, call experiments and data."""
