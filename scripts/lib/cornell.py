#!/usr/bin/env python3
"""The Cornell Movie-Dialogs Corpus as a text of conversations.

    scripts/lib/cornell.py FOLDER FILE.txt [--utterances=304713]

Reads movie_lines.txt and movie_conversations.txt in FOLDER and writes the conversations in their order: one utterance per
line, an empty line between conversations, UTF-8. White space inside an utterance, line breaks among it, becomes one blank. An
empty utterance divides its conversation, since what it answers and what answers it are no neighbours.

Exit status: 0, FILE.txt is written; 1, it cannot be written; 2, the corpus is refused.
"""

import pathlib
import re

from documents import Failed, Refused, option_parser, run_script
from whole_file import write_whole

SEPARATOR = " +++$+++ "
PUBLISHED = 304_713  # utterances: README of the corpus, Danescu-Niculescu-Mizil and Lee 2011


def fields_of(path, count):
    """Number and fields of each line of a file of the corpus: ISO-8859-1, the last field may be empty."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.", "Name the folder that holds the files of the corpus.") from error
    for number, line in enumerate(content.decode("iso-8859-1").removesuffix("\n").split("\n"), start=1):
        fields = (line + " ").split(SEPARATOR, count - 1)
        if len(fields) != count:
            raise Refused(f"line {number} of {path} has {len(fields)} of {count} fields.",
                          f'Fields are separated by "{SEPARATOR}". Unpack the corpus again.')
        yield number, [field.strip() for field in fields]


def read_utterances(path, expected):
    """The text of each utterance by its name, in one line."""
    utterances = {}
    for number, (name, _, _, _, text) in fields_of(path, 5):
        if name in utterances:
            raise Refused(f"line {number} of {path} is a second utterance {name}.", "Unpack the corpus again.")
        utterances[name] = " ".join(text.split())
    if len(utterances) != expected:
        raise Refused(f"{path} has {len(utterances):,} utterances, not {expected:,}.",
                      f"Unpack the corpus again, or take what is there with --utterances={len(utterances)}.")
    return utterances


def read_conversations(path, utterances):
    """The utterances of each conversation; an empty one divides it."""
    for number, (_, _, _, names) in fields_of(path, 4):
        if not re.fullmatch(r"\['[^', ]+'(, '[^', ]+')*\]", names):
            raise Refused(f"line {number} of {path} has no list of utterances: {names}", "Unpack the corpus again.")
        part = []
        for name in re.findall(r"[^', \[\]]+", names):
            if name not in utterances:
                raise Refused(f"line {number} of {path} names the utterance {name}, which is not in the corpus.",
                              "Take both files from the same copy of the corpus.")
            if utterances[name]:
                part.append(utterances[name])
            elif part:
                yield part
                part = []
        if part:
            yield part


def write(path, conversations):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "\n".join("\n".join(lines) + "\n" for lines in conversations))


def main(arguments):
    parser = option_parser(__file__, "The Cornell Movie-Dialogs Corpus as a text of conversations.")
    parser.add_argument("folder", type=pathlib.Path, help="folder with movie_lines.txt and movie_conversations.txt")
    parser.add_argument("file", type=pathlib.Path, help="text that is written")
    parser.add_argument("--utterances", type=int, default=PUBLISHED, help=f"number of utterances (default: {PUBLISHED})")
    options = parser.parse_args(arguments)
    try:
        utterances = read_utterances(options.folder / "movie_lines.txt", options.utterances)
        conversations = list(read_conversations(options.folder / "movie_conversations.txt", utterances))
        write(options.file, conversations)
    except OSError as error:
        raise Failed(f"{options.file} cannot be written: {error.strerror}.", "Choose another folder.") from error
    print(f"{options.file}: {sum(map(len, conversations)):,} utterances in {len(conversations):,} conversations")


if __name__ == "__main__":
    run_script(main)
