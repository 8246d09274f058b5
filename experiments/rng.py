"""Randomness as a function of (seed, purpose): no hidden global state, nothing to restore on resume."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, such as ``derive(0, "noise", step)``; stable across machines and versions."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A private generator for one purpose."""
    return torch.Generator(device=device).manual_seed(derive(seed, *purpose))
