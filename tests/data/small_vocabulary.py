#!/usr/bin/env python3
"""Writes a vocabulary of 259 entries, in GPT-2's two files: the bytes, "ow", "owl" and <|endoftext|>.

Usage: small_vocabulary.py FOLDER
"""
import json
import os
import sys


def spellings():
    """The character that stands for each byte in GPT-2's files."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
entries = spellings() + ["ow", "owl", "<|endoftext|>"]
with open(os.path.join(folder, "encoder.json"), "w", encoding="utf-8") as file:
    json.dump({entry: number for number, entry in enumerate(entries)}, file)
with open(os.path.join(folder, "vocab.bpe"), "w", encoding="utf-8") as file:
    file.write("#version: 0.2\no w\now l\n")
