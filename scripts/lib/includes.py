"""What files of lessons include of each other, and which lesson teaches a file of lessons/parallel."""

import re

INCLUDE = re.compile(r'^#include "(lessons/[^"]+)"', re.MULTILINE)
OF_LESSON = re.compile(r"lessons/(\d\d)_\w+/\w+\.[ch]pp$")
SHARED = "lessons/parallel/"


def lesson_files(paths, lesson):
    """The C++ files in the folder of a lesson."""
    return sorted(path for path in paths if (match := OF_LESSON.match(path)) and match[1] == lesson)


def reached(sources, text_of):
    """These files, the files of lessons/ that they include, directly or not, and the .cpp file beside each header.

    text_of(path): the text of a file, None where there is no such file."""
    found, todo = set(), list(sources)
    while todo:
        path = todo.pop()
        text = None if path in found else text_of(path)
        if text is not None:
            found.add(path)
            todo += INCLUDE.findall(text)
            if path.endswith(".hpp"):
                todo.append(path.removesuffix(".hpp") + ".cpp")
    return found


def teachers(paths, text_of):
    """The lesson that teaches each file of lessons/parallel, path -> number: the first that includes it, directly or not."""
    taught = {}
    for lesson in sorted({match[1] for path in paths if (match := OF_LESSON.match(path))}):
        for path in sorted(reached(lesson_files(paths, lesson), text_of)):
            if path.startswith(SHARED):
                taught.setdefault(path, lesson)
    return taught
